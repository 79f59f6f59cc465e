"""What a tree of processes holds and has computed, and what else the machine does: from /proc, without touching what is
measured while it is measured."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc")
TICK = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """The process and all that descend from it, as they are now."""
    children: dict[int, list[int]] = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit() and (fields := _stat(int(folder.name))):
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    out, open_ = [], [pid]
    while open_:
        out.append(open_.pop())
        open_ += children.get(out[-1], [])
    return out


def peak_rss(pids: list[int]) -> int:
    """Bytes: the sum of each process's own greatest resident size (VmHWM), pages of mapped files included. The kernel keeps it,
    so no peak is missed between two looks; an upper bound where processes share pages or peak at different times."""
    return sum(_kib(PROC / str(pid) / "status", "VmHWM:") for pid in pids)


def pss(pids: list[int]) -> int:
    """Bytes held now, shared pages divided among those that share them."""
    return sum(_kib(PROC / str(pid) / "smaps_rollup", "Pss:") for pid in pids)


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of all threads so far."""
    return sum(sum(int(f) for f in fields[11:13]) for pid in pids if (fields := _stat(pid))) / TICK


@dataclass(frozen=True, slots=True)
class Busy:
    """Processor seconds of the whole machine since it started. stolen: taken by its host."""

    used: float
    stolen: float


def busy() -> Busy:
    ticks = [int(f) for f in (PROC / "stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
    return Busy((user + nice + system + irq + softirq) / TICK, steal / TICK)


def machine() -> dict[str, Any]:
    """What the figures were taken on. cores: those this process may use."""
    lines = (PROC / "cpuinfo").read_text().splitlines()
    info = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    reported = set(info.get("flags", "").split())
    return {
        "processor": info.get("model name", platform.processor() or platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "instructions": sorted(
            reported & {"avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_bf16", "amx_int8"}
        ),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": platform.platform(),
    }


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on, so that a name with spaces cannot shift them; none if the process is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _kib(path: Path, key: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), 0)
