"""Do the tests notice faults? Puts each fault of ci/mutants.toml into a copy of this tree and runs the tests meant to catch it.

    python ci/mutants.py [--only WORD ...] [--list] [--jobs N] [--json FILE]

A fault is *caught* if its tests fail, or do not end in time; it *survived* if they pass: then a test is missing. Where the
text to replace is gone, or the tests do not pass without the fault, that is an error: the table has fallen behind the code.
Exit status 0 if nothing is in error and at least RATE of the faults were caught.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "ci" / "mutants.toml"
RATE = 0.95
SECONDS = 600
"""Of one run of tests without a fault; with one it may take FACTOR times as long as it did without, and MARGIN more."""
FACTOR, MARGIN = 5, 60
COMPILED = "COMPILED"
"""Begins the arguments of tests that need the compiled CPU kernels. They are compiled from the copy, for the portable
instruction set alone and with little optimisation: the sources are the same for all sets, and this one is compiled soonest."""
BUILD = "import sys, pathlib, hatch_build; hatch_build.build(pathlib.Path(sys.argv[1]), ('-O1',), ())"
NATIVE = Path("thalweg/backends/cpu/native")
KIT = "-p thalweg.hal.testing.options --pyargs thalweg.hal.testing"


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    file: str
    old: str
    new: str
    test: str
    """A name of the table's [tests]."""


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    file: str
    test: str
    verdict: str
    """caught, timed out, survived, or what is wrong."""
    seconds: float

    @property
    def caught(self) -> bool:
        return self.verdict in ("caught", "timed out")

    @property
    def broken(self) -> bool:
        return not self.caught and self.verdict != "survived"


def table(path: Path = TABLE) -> tuple[list[Fault], dict[str, str]]:
    """(faults, pytest arguments by name). ValueError if a fault names tests there are none of, or a name comes twice."""
    data = tomllib.loads(path.read_text())
    faults, tests = [Fault(**f) for f in data["fault"]], data["tests"]
    for f in faults:
        if f.test not in tests:
            raise ValueError(f"{path.name}: fault {f.name!r} names tests {f.test!r}, which are not listed")
    twice = [n for n, count in Counter(f.name for f in faults).items() if count > 1]
    if twice:
        raise ValueError(f"{path.name}: named twice: {', '.join(twice)}")
    return faults, tests


def copy_tree(target: Path) -> None:
    """What git would take of this tree, committed or not."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=False
    )
    if listed.returncode:  # not a checkout
        ignore = shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", "*.egg-info")
        shutil.copytree(ROOT, target, ignore=ignore, dirs_exist_ok=True)
        return
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


@contextmanager
def injected(fault: Fault, tree: Path) -> Iterator[None]:
    """The fault in the tree, and the tree as it was afterwards. ValueError if the text is not there exactly once."""
    path = tree / fault.file
    before = path.read_text()
    found = before.count(fault.old)
    if found != 1:
        raise ValueError(f"the text to replace occurs {found} times in {fault.file}")
    path.write_text(before.replace(fault.old, fault.new))
    try:
        yield
    finally:
        path.write_text(before)


@contextmanager
def compiled(tree: Path) -> Iterator[None]:
    """The library of this tree's sources in its place, and none afterwards. What was compiled is kept beside the trees, by
    what the sources say. ValueError if they do not compile."""
    sources = sorted((tree / NATIVE / "src").iterdir())
    kept = tree.parent / f"{hashlib.sha256(b''.join(p.read_bytes() for p in sources)).hexdigest()}.so"
    place = tree / NATIVE / "libthalweg_cpu.so"
    if not kept.exists():
        command = [sys.executable, "-c", BUILD, str(place)]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"does not compile: {done.stderr.strip()[-300:]}")
        place.replace(kept)
    shutil.copy(kept, place)
    try:
        yield
    finally:
        place.unlink()


def run(arguments: str, tree: Path, seconds: float) -> tuple[int | None, float, str]:
    """(pytest's exit status or None if it did not end in time, seconds, the end of its output). ValueError if the kernels it
    needs do not compile."""
    if arguments.startswith(COMPILED):
        with compiled(tree):
            return run(arguments.removeprefix(COMPILED), tree, seconds)
    words = shlex.split(arguments.replace("KIT", KIT))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *words]
    path = os.pathsep.join(filter(None, [str(tree), os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    start = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, cwd=tree, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out.seek(0)
        return code, time.monotonic() - start, out.read()[-2000:].decode(errors="replace")


def judge(fault: Fault, arguments: str, tree: Path, seconds: float) -> Outcome:
    try:
        with injected(fault, tree):
            code, took, output = run(arguments, tree, seconds)
    except (ValueError, OSError) as e:
        return Outcome(fault.name, fault.file, fault.test, str(e), 0)
    if code not in (None, 0, 1):
        tail = output.strip().splitlines()[-1:] or [""]
        return Outcome(fault.name, fault.file, fault.test, f"pytest ended with {code}: {tail[0]}", took)
    return Outcome(fault.name, fault.file, fault.test, {None: "timed out", 0: "survived"}.get(code, "caught"), took)


def clean(names: list[str], tests: dict[str, str], trees: SimpleQueue[Path], jobs: int) -> dict[str, float]:
    """Seconds that each of these tests takes without a fault. SystemExit where one does not pass."""

    def once(name: str) -> tuple[str, float]:
        tree = trees.get()
        try:
            code, took, output = run(tests[name], tree, SECONDS)
        finally:
            trees.put(tree)
        if code:
            raise SystemExit(f"tests {name!r} ({tests[name]}) do not pass without a fault (exit status {code}):\n{output}")
        return name, took

    with ThreadPoolExecutor(jobs) as pool:
        return dict(pool.map(once, names))


def examine(faults: list[Fault], tests: dict[str, str], jobs: int, tell: Any = print) -> list[Outcome]:
    """Every fault in a copy of its own per job; `tell` gets a line as each is settled."""
    with tempfile.TemporaryDirectory() as scratch:
        trees: SimpleQueue[Path] = SimpleQueue()
        for n in range(jobs):
            tree = Path(scratch) / f"tree{n}"
            copy_tree(tree)
            trees.put(tree)
        seconds = clean(sorted({f.test for f in faults}), tests, trees, jobs)

        def one(fault: Fault) -> Outcome:
            tree = trees.get()
            try:
                o = judge(fault, tests[fault.test], tree, FACTOR * seconds[fault.test] + MARGIN)
            finally:
                trees.put(tree)
            tell(f"{o.verdict:10} {o.seconds:6.1f} s  {o.test:16}  {o.name}")
            return o

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, faults))


def verdict(outcomes: list[Outcome]) -> tuple[str, bool]:
    """(one line, whether it is good enough)."""
    caught, broken = sum(o.caught for o in outcomes), sum(o.broken for o in outcomes)
    late = sum(o.verdict == "timed out" for o in outcomes)
    rate = caught / len(outcomes) if outcomes else 0.0
    line = f"{len(outcomes)} faults: {caught} caught ({late} by a time limit), {len(outcomes) - caught - broken} survived, "
    return f"{line}{broken} in error: {rate:.1%}", not broken and rate >= RATE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="faults whose name, file or tests contain one of these")
    parser.add_argument("--list", action="store_true", help="print them and run nothing")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    faults, tests = table()
    if args.only:
        faults = [f for f in faults if any(w in (f.name, f.test) or w in f.name or w in f.file for w in args.only)]
    if args.list:
        print("\n".join(f"{f.test:16}  {f.file:48}  {f.name}" for f in faults))
        return 0
    outcomes = examine(faults, tests, args.jobs, lambda line: print(line, flush=True))
    line, good = verdict(outcomes)
    print(line)
    if args.json:
        args.json.write_text(json.dumps({"outcomes": [asdict(o) for o in outcomes], "verdict": line}, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
