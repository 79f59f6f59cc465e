"""Generated requests against a server, over its own OpenAPI description: none may end in a 5xx, or hang. Needs schemathesis.

Run: python ci/fuzz_api.py --python PYTHON [--cases 4000] [--seed N] [--routes all]

PYTHON has schemathesis 4, in an environment of its own. The server has the device `null`, whose engine says anything, so a
generated request costs no model. Routes that its model does not have answer 400 at once, and are left out but for --routes all.

Purely random bodies end at the first required field. So of seven in ten the required fields are made right, and a few of
the others are left as they were generated. Half of the ids in paths are ids that answers had.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = r"^/(pooling|classify|score|rerank|v1/(score|rerank|embeddings)|v2/(rerank|embed)|cohere/v2/(rerank|embed))$"
"""Routes of models that give vectors."""
SECONDS = 30
"""A request that takes longer hangs."""
HOOKS = """
import random
import schemathesis

SAID = [{"role": "user", "content": "hello"}]
GOOD = {
    "model": "MODEL", "messages": SAID, "prompt": "hello", "input": "hello", "query": "hello", "items": ["a", "b"],
    "label_token_ids": [1, 2], "tokens": [1, 2, 3], "token_ids": [1, 2, 3], "max_tokens": 8, "max_output_tokens": 8,
    "max_completion_tokens": 8,
}
NEVER = ("chat_template",)
IDS = ["MODEL"]

@schemathesis.hook
def after_call(context, case, response):
    try:
        made = response.json()
    except Exception:
        return
    if isinstance(made, dict) and isinstance(made.get("id"), str) and len(IDS) < 200:
        IDS.append(made["id"])

@schemathesis.hook
def map_path_parameters(context, path_parameters):
    if not path_parameters or random.Random(repr(path_parameters)).random() < 0.5:
        return path_parameters
    return {name: random.choice(IDS[-20:]) for name in path_parameters}

@schemathesis.hook
def map_body(context, body):
    if not isinstance(body, dict):
        return body
    if isinstance(body.get("model"), str):
        body["model"] = "MODEL"
    chance = random.Random(repr(body))
    if chance.random() > 0.7:
        return body
    others = [k for k in body if k not in GOOD and k not in NEVER]
    kept = chance.sample(others, min(len(others), chance.randrange(5)))
    return {**{k: v for k, v in GOOD.items() if k in body}, **{k: body[k] for k in kept}}
"""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", required=True, help="a Python that has schemathesis")
    parser.add_argument("--cases", type=int, default=4000, help="requests, about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--routes", choices=("served", "all"), default="served")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True) as folder:
        server, url = _serve(Path(folder) / "server.log")
        try:
            return _fuzz(args, url, Path(folder))
        finally:
            server.terminate()
            server.wait(60)


def _serve(log: Path) -> tuple[subprocess.Popen[bytes], str]:
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "thalweg", "serve", "--device", "null", "--port", str(port)]
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return server, url
        except OSError:
            time.sleep(0.1)
    server.kill()
    raise SystemExit(f"the server did not start: {log.read_text()[-400:]}")


def _fuzz(args: argparse.Namespace, url: str, folder: Path) -> int:
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=10) as answer:
        paths = json.load(answer)["paths"]
    with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:
        model = json.load(answer)["data"][0]["id"]
    requested = [p for p in paths if args.routes == "all" or not re.search(LEFT_OUT, p)]
    operations = sum(len(paths[p]) for p in requested)
    (folder / "fuzz_hooks.py").write_text(HOOKS.replace("MODEL", model))
    report = folder / "report.har"
    command = [
        args.python, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--phases", "fuzzing", "--checks",
        "not_a_server_error", "--continue-on-failure", "-n", str(max(1, args.cases // operations)), "--seed", str(args.seed),
        "--request-timeout", str(SECONDS), "--suppress-health-check", "all", "--no-color", "--no-shrink",
        "--generation-database", "none", "--warnings", "off", "--report", "har", "--report-har-path", str(report),
    ]  # fmt: skip
    if args.routes == "served":
        command += ["--exclude-path-regex", LEFT_OUT]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "fuzz_hooks", "PYTHONPATH": str(folder), "NO_PROXY": "*"}
    status = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
    counts: dict[int, int] = {}
    for entry in json.loads(report.read_text())["log"]["entries"]:
        code = entry["response"]["status"]
        counts[code] = counts.get(code, 0) + 1
    with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
        alive = answer.status == 200
    print(f"{sum(counts.values())} requests over {operations} operations: {dict(sorted(counts.items()))}; alive: {alive}")
    return int(bool(status) or not alive or any(code >= 500 or code <= 0 for code in counts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
