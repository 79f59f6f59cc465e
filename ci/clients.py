"""Real clients against this server, a row each. `clients/` has a file per family of them.

Run: python ci/clients.py [--bin FOLDER] [--python PYTHON] [--only NAME,...] [--nano | --broken] [--keep]

Each client has work that needs its tool, or an object that its schema describes. The model behind the server is scripted: it
calls the tool, and says that it is done once the prompt has what the tool printed. A row is right when the tool ran, its result
came back in the prompt, and the client ended well with the last text. Constraints hold the scripted model as masks would.
--nano serves the draft of the bundled model, whose answers say nothing. A row is right then when the client ends well.
--broken serves a model that calls nothing and gives no object: a row that is right all the same shows nothing, and fails.

Programs come from FOLDER, a node_modules/.bin:
  npm install @openai/codex @anthropic-ai/claude-code opencode-ai ai @ai-sdk/openai @ai-sdk/openai-compatible
      @ai-sdk/anthropic @ai-sdk/cohere zod
PYTHON has what it runs:
  pip install openai-agents instructor langchain-openai anthropic cohere
Open WebUI needs an environment of its own, and is run by: --only open-webui --bin ENVIRONMENT/bin.
Clients get an empty home, a key that opens nothing, and addresses on loopback.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from clients import CLIENTS
from clients.client import BROKEN, PROGRAMS, Client
from clients.server import Server, nano


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bin", type=Path, help="a folder of programs, such as node_modules/.bin")
    parser.add_argument("--python", help="a Python that has the clients' packages")
    parser.add_argument("--only", metavar="NAME,...", help="rows, or families of them; default: all")
    served = parser.add_mutually_exclusive_group()
    served.add_argument("--nano", action="store_true", help="serve the bundled model's draft")
    served.add_argument("--broken", action="store_true", help="serve a model that only talks: every row must fail")
    parser.add_argument("--timeout", type=float, default=180, help="seconds for one row")
    parser.add_argument("--keep", action="store_true", help="print what clients say")
    args = parser.parse_args(words)
    wrong = False
    for client in _chosen(parser, args.only):
        why_not = find_missing(client, args)
        if why_not:
            print(f"{client.name:42} {why_not}", flush=True)
            continue
        client = replace(client, script=BROKEN) if args.broken else client
        with _serving(client, args.nano) as server:
            began = time.monotonic()
            why = run(client, server, args)
        if args.broken:
            why = "" if why else "nothing was done, and the row did not see it"
        print(f"{client.name:42} {time.monotonic() - began:6.1f} s  {why or 'ok'}", flush=True)
        wrong = wrong or bool(why)
    return wrong


def _chosen(parser: argparse.ArgumentParser, only: str | None) -> list[Client]:
    names = {n for n in (only or "").split(",") if n}
    unknown = names - {c.name for c in CLIENTS} - {c.family for c in CLIENTS}
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))} is no row; rows are {', '.join(c.name for c in CLIENTS)}")
    return [c for c in CLIENTS if not names or {c.name, c.family} & names]


def _serving(client: Client, real: bool) -> AbstractContextManager[Server]:
    if real:
        return nano()
    from clients.engine import scripted  # with it the whole server

    return scripted(client)


def find_missing(client: Client, args: argparse.Namespace) -> str:
    """Why the row cannot be run here. "": it can."""
    if args.nano and not client.nano:
        return "needs the scripted model"
    match client.kind:
        case "python":
            found = args.python is not None and _imports(args.python, client.needs)
        case "node":
            modules = args.bin.resolve().parent if args.bin is not None else None
            found = modules is not None and all((modules / n).is_dir() for n in client.needs) and shutil.which("node")
        case _:
            found = _find_program(client, args.bin)
    return "" if found else "not installed"


def _imports(python: str, modules: tuple[str, ...]) -> bool:
    code = "import sys, importlib.util as u; sys.exit(any(u.find_spec(m) is None for m in sys.argv[1:]))"
    return subprocess.run([python, "-P", "-c", code, *modules], check=False).returncode == 0


def _find_program(client: Client, folder: Path | None) -> str | None:
    name = client.words("", "")[0]
    return shutil.which(name, path=str(folder.resolve()) if folder else None)


def build_command(client: Client, server: Server, args: argparse.Namespace, work: Path) -> list[str]:
    words = client.words(server.url, server.model)
    once = ["--once"] if args.nano and client.once else []
    match client.kind:
        case "python":
            return [args.python, "-P", str(PROGRAMS / words[0]), *words[1:], *once]
        case "node":  # a module finds packages in folders above its own
            (work / "node_modules").symlink_to(args.bin.resolve().parent)
            shutil.copy(PROGRAMS / words[0], work)
            return ["node", words[0], *words[1:], *once]
    program = _find_program(client, args.bin)
    assert program is not None, "found before"
    driver = [sys.executable, str(PROGRAMS / client.driver)] if client.driver else []
    return [*driver, program, *words[1:]]


def run(client: Client, server: Server, args: argparse.Namespace) -> str:
    """Why it is not right. "": it is."""
    with tempfile.TemporaryDirectory(prefix="clients-", ignore_cleanup_errors=True) as folder:
        home, work = Path(folder) / "home", Path(folder) / "work"
        home.mkdir()
        work.mkdir()
        subprocess.run(["git", "init", "-q"], cwd=work, check=False)
        environment = {"HOME": str(home), "PATH": os.environ["PATH"], "NO_PROXY": "*", "LANG": "C.UTF-8"}
        environment |= client.environment(server.url, server.model)
        process = subprocess.Popen(
            build_command(client, server, args, work), cwd=work, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=args.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return f"took longer than {args.timeout:.0f} s: {output[-300:]!r}"
    if args.keep:
        print(output)
    return server.judge(process.returncode, re.sub(r"\x1b\[[0-9;]*m", "", output))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
