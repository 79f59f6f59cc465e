"""`thalweg collect-env`: facts of the machine for a bug report. Reads versions from metadata. Imports no framework."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import orjson

import thalweg
from thalweg.cli.backends import listing, table
from thalweg.cli.flags import Parser

ALSO = ("torch", "transformers", "triton", "jax", "openai")
"""Relevant libraries besides our own requirements."""


def run(words: list[str]) -> int:
    parser = Parser(prog="thalweg collect-env", description="A report on system, libraries and platforms, for bug reports.")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    as_json = parser.parse_args(words).json
    report = collect()
    print(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() if as_json else text(report))
    return 0


def collect() -> dict[str, object]:
    return {
        "thalweg": thalweg.__version__,
        "os": platform.platform(),
        "python": sys.version.replace("\n", " "),
        "libc": " ".join(platform.libc_ver()),
        "cpu": _cpu(),
        "cores": f"{_usable_cores()} usable of {os.cpu_count()}",
        "memory": _memory(),
        "libraries": _libraries(),
        "platforms": listing(),
    }


def _libraries() -> dict[str, str]:
    names = {_name(r) for r in requires("thalweg") or () if "extra ==" not in r} | set(ALSO)
    found = {}
    for name in sorted(names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _name(requirement: str) -> str:
    for i, c in enumerate(requirement):
        if not (c.isalnum() or c in "-_."):
            return requirement[:i]
    return requirement


def _usable_cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _cpu() -> str:
    return _line(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine()


def _memory() -> str:
    total = _line(Path("/proc/meminfo"), "MemTotal")
    free = _line(Path("/proc/meminfo"), "MemAvailable")
    return f"{_gib(total)} GiB, {_gib(free)} GiB available" if total and free else "unknown"


def _gib(kib: str) -> str:
    return f"{int(kib.split()[0]) / 2**20:.1f}"


def _line(file: Path, key: str) -> str:
    """The value of the first "key: value" line of a system file. "" where there is none."""
    if not file.exists():
        return ""
    for line in file.read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def text(report: dict[str, object]) -> str:
    lines = [f"{k + ':':10} {v}" for k, v in report.items() if isinstance(v, str)]
    libraries = report["libraries"]
    assert isinstance(libraries, dict)
    lines += ["", "libraries:", *(f"  {k} {v}" for k, v in libraries.items())]
    rows = report["platforms"]
    assert isinstance(rows, list)
    return "\n".join([*lines, "", table(rows)])
