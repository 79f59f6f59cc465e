"""`thalweg bench startup`: from starting the server's process to the first byte of a streamed answer, by phase. The model's
files are in the page cache (warm), or the system was asked to drop them (cold).

Cold is best effort: the system may keep pages mapped by others, and Python's own files stay warm.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib import error, request

import numpy as np
from msgspec.structs import replace

from thalweg.bench import startup_plan
from thalweg.bench.common import at_least, check_output, write
from thalweg.config import EngineArgs
from thalweg.engine.planning import checkpoint_config
from thalweg.errors import ConfigError, ThalwegError
from thalweg.host import envs

POINTS = (
    "command line", "server imported", "engine started", "framework imported", "weights loaded", "engine built",
    "tokenizer loaded", "canary answered", "first byte", "fourth token",
)  # fmt: skip
"""Points in the order of the chain. Each row of the breakdown is the time from the latest before. Overlap shows as a
small number."""
REFUSED = ()
TOKENS = 4
"""Tokens of the request: work done first with the second or third token is measured too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-iters-cold", type=int, default=3, help="cold starts measured (default 3)")
    parser.add_argument("--num-iters-warmup", type=int, default=1, help="unmeasured starts before warm ones (default 1)")
    parser.add_argument("--num-iters-warm", type=int, default=3, help="warm starts measured (default 3)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds one start may take (default 600)")
    parser.add_argument(
        "--predict", action="store_true", help="print the plan of a start too: counted, with costs measured here or assumed"
    )
    parser.add_argument(
        "--arch", default="", help="with --predict: plan for this device, which need not be here; starts nothing"
    )
    parser.add_argument(
        "--assume", nargs="+", default=[], metavar="NAME=NUMBER", help="with --predict: costs that replace others"
    )
    parser.add_argument("--output-json", metavar="FILE", help="write the results there too")


def main(namespace: argparse.Namespace, args: EngineArgs, flags: Sequence[str] = ()) -> dict[str, Any]:
    """Run and print. Returns seconds per start and per part. `flags`: engine flags as given, for the servers started."""
    a = namespace
    at_least(0, num_iters_cold=a.num_iters_cold, num_iters_warmup=a.num_iters_warmup)
    at_least(1, num_iters_warm=a.num_iters_warm)
    check_output(a.output_json)
    path = checkpoint_config.find(args)
    if (a.arch or a.assume) and not a.predict:
        raise ConfigError(f"--{'arch' if a.arch else 'assume'}: only with --predict")
    assumed = startup_plan.read_assumed(a.assume)
    planned = startup_plan.plan_start(replace(args, model=str(path)), a.arch, assumed) if a.predict else None
    predicted = {} if planned is None else {"predicted": [asdict(p) for p in planned[0]], "costs": planned[1]}
    if planned is not None and a.arch:
        write(a.output_json, predicted)
        print(startup_plan.format_plan(*planned, {}))
        return predicted
    runs: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(a.num_iters_cold):
        drop_pages(path)
        runs["cold"].append(start_once(flags, a.timeout))
    for _ in range(a.num_iters_warmup):
        start_once(flags, a.timeout)
    runs["warm"] = [start_once(flags, a.timeout) for _ in range(a.num_iters_warm)]
    floor = min(_framework_import() for _ in range(3)) if args.device != "null" else 0.0
    result: dict[str, Any] = {"total_startup_time": {}, "breakdown": {}, "framework_import": floor, "runs": runs, **predicted}
    for kind, each in runs.items():
        if each:
            result["total_startup_time"][kind] = [r["first byte"] for r in each]
            result["breakdown"][kind] = breakdown(each)
    write(a.output_json, result)
    print(table(result))
    if planned is not None:
        warm = runs["warm"]
        reached = {p: float(np.median([r[p] for r in warm if p in r])) for p in POINTS if any(p in r for r in warm)}
        print(startup_plan.format_plan(*planned, reached))
    return result


def breakdown(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Median seconds of each part: from the latest point before it in the chain to the point."""
    out = {}
    for i, name in enumerate(POINTS):
        parts = [r[name] - max((r[p] for p in POINTS[:i] if p in r), default=0.0) for r in runs if name in r]
        if parts:
            out[name] = float(np.median(parts))
    return out


def table(result: dict[str, Any]) -> str:
    kinds = list(result["breakdown"])
    lines = [f"{'seconds, medians':24}" + "".join(f"{k:>10}" for k in kinds)]
    for name in POINTS:
        cells = [result["breakdown"][k].get(name) for k in kinds]
        if any(c is not None for c in cells):
            lines.append(f"until {name:18}" + "".join(f"{'' if c is None else f'{c:.3f}':>10}" for c in cells))
    totals = [float(np.median(result["total_startup_time"][k])) for k in kinds]
    lines.append(f"{'start to first byte':24}" + "".join(f"{t:10.3f}" for t in totals))
    lines.append(f"floor: importing only the tensor framework: {result['framework_import']:.3f} s")
    return "\n".join(lines)


def drop_pages(path: Path) -> None:
    """Ask the system to forget the model's files. It may decline."""
    if not hasattr(os, "posix_fadvise"):
        return
    for file in path.iterdir() if path.is_dir() else path.parent.iterdir():
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def start_once(flags: Sequence[str], timeout: float) -> dict[str, float]:
    """Start a server, ask for a few streamed tokens as soon as it is ready, stop it. Seconds from the start to each point."""
    with tempfile.TemporaryDirectory(prefix="thalweg-startup-") as folder:
        marks, log = Path(folder, "marks"), Path(folder, "log")
        command = [sys.executable, "-m", "thalweg", "serve", *flags, "--port", "0", "--disable-uvicorn-access-log"]
        with log.open("wb") as out:
            start = time.monotonic()
            process = subprocess.Popen(command, stdout=out, stderr=out, env=envs.with_startup_marks(str(marks)))
            try:
                first, last = _answer(process, log, start + timeout)
            finally:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        return {**_read_marks(marks, start), "first byte": first - start, "fourth token": last - start}


def _answer(process: subprocess.Popen[bytes], log: Path, until: float) -> tuple[float, float]:
    """When the first event of a chat of TOKENS tokens arrived, and when the last."""
    body = {"model": "", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    body |= {"max_completion_tokens": TOKENS, "ignore_eos": True}
    url = ""
    while time.monotonic() < until:
        if process.poll() is not None:
            raise ThalwegError(f"bench startup: the server ended while starting: {log.read_text(errors='replace')[-500:]}")
        url = url or server_address(log)
        if url:
            try:
                if not body["model"]:
                    request.urlopen(f"{url}/readyz", timeout=5).read()
                    with request.urlopen(f"{url}/v1/models", timeout=5) as answer:
                        body["model"] = json.load(answer)["data"][0]["id"]
                requested = request.Request(
                    f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
                )
                with request.urlopen(requested, timeout=30) as answer:
                    answer.readline()
                    first = time.monotonic()
                    answer.read()
                    return first, time.monotonic()
            except (error.URLError, OSError):
                pass
        time.sleep(0.005)
    raise ThalwegError(f"bench startup: no answer in time: {log.read_text(errors='replace')[-500:]}")


def server_address(log: Path) -> str:
    """Where the server says it listens. "" until it does."""
    for word in log.read_text(errors="replace").replace(";", " ").split():
        if word.startswith("http://"):
            return word
    return ""


def _read_marks(path: Path, start: float) -> dict[str, float]:
    """Seconds from the start to when each point was first passed."""
    out: dict[str, float] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, at = line.rpartition(" ")
        out.setdefault(name, float(at) - start)
    return out


def _framework_import() -> float:
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False)
    return time.monotonic() - start if done.returncode == 0 else 0.0
