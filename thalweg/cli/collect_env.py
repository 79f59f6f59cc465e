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

ALSO = ("torch", "transformers", "triton", "jax", "openai", "ray")
"""Relevant libraries besides our own requirements."""
XGMI = "11"
"""Type of such a link in the kernel's table (CRAT_IOLINK_TYPE_XGMI)."""


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
        "links": _links(),
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


def _links(system: Path = Path("/sys"), shared: Path = Path("/dev/shm")) -> dict[str, str]:
    """What ranks of several processes or machines exchange over: memory nodes, shared memory, network interfaces that are up,
    RDMA devices, and links between accelerators that the kernel lists. No addresses: reports are published."""
    found = {"memory nodes": str(len(list((system / "devices/system/node").glob("node[0-9]*"))) or "unknown")}
    found["shared memory"] = _measure_folder(shared)
    if count := sum(_is_peer_link(each) for each in (system / "class/kfd/kfd/topology/nodes").glob("*/io_links/*/properties")):
        found["links between accelerators"] = f"{count} (xGMI)"
    for each in sorted((system / "class/net").glob("*")):
        if _read(each / "operstate") in ("up", "unknown") and (each / "mtu").is_file():
            speed = _read(each / "speed")
            rate = f"{speed} Mbit/s" if speed.isdecimal() else "speed unknown"
            found[f"interface {each.name}"] = f"{rate}, frames of {_read(each / 'mtu')} bytes"
    for each in sorted((system / "class/infiniband").glob("*/ports/*")):
        found[f"rdma {each.parent.parent.name} port {each.name}"] = f"{_read(each / 'rate')}, {_read(each / 'link_layer')}"
    return found


def _measure_folder(folder: Path) -> str:
    """The room of a file system in memory."""
    try:
        now = os.statvfs(folder)
    except OSError as e:
        return f"{folder}: {e.strerror}"
    unit = now.f_frsize / 2**30
    return f"{now.f_blocks * unit:.1f} GiB at {folder}, {now.f_bavail * unit:.1f} GiB available"


def _is_peer_link(properties: Path) -> bool:
    """Does a link of the kernel's table of accelerators lead to another one, not over PCIe?"""
    return any(line.split() == ["type", XGMI] for line in _read(properties).splitlines())


def _read(file: Path) -> str:
    """The text of a file of the system, without its end of line. "": it has none."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


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
    for name, sign in (("links", ":"), ("libraries", "")):
        facts = report[name]
        assert isinstance(facts, dict)
        lines += ["", f"{name}:", *(f"  {k}{sign} {v}" for k, v in facts.items())]
    rows = report["platforms"]
    assert isinstance(rows, list)
    return "\n".join([*lines, "", table(rows)])
