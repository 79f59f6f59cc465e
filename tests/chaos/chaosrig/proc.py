"""What /proc says of processes: memory, descriptors, threads, children, processor time."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sample:
    rss: int
    """Bytes."""
    fds: int
    threads: int
    cpu: float
    """Seconds of processor time so far."""


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, parent, group, session, ... Empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def alive(pid: int) -> bool:
    """Running, not gone and no zombie."""
    fields = stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def started(pid: int) -> tuple[int, int]:
    """Orders processes by when they began; one that is gone comes last."""
    fields = stat(pid)
    return (int(fields[19]), pid) if fields else (2**62, pid)


def sample(pid: int) -> Sample:
    fields = stat(pid)
    if not fields:
        return Sample(0, 0, 0, 0.0)
    rss = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    cpu = (int(fields[11]) + int(fields[12])) / TICKS
    return Sample(rss, len(os.listdir(f"/proc/{pid}/fd")), int(fields[17]), cpu)


def peak_rss(pid: int) -> int:
    """The most bytes it ever held (or held since `forget_peak`)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def bytes_read(pid: int) -> int:
    """All bytes its read calls returned so far, from files and sockets."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    return 0


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def environment(pid: int) -> bytes:
    """Empty if it is gone, or may not be looked at."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def in_session(session: int) -> list[int]:
    """Live processes of a session, the leader included."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = stat(int(name))
            if len(fields) > 3 and fields[3] == str(session) and fields[0] not in "ZX":
                found.append(int(name))
    return found


def shared_memory() -> set[str]:
    """The names of shared memory of all processes of this machine."""
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def leaked_memory(before: set[str]) -> list[str]:
    """What is there that was not before, but for names with the id of a live process: other tests run meanwhile."""
    return [name for name in sorted(shared_memory() - before) if not any(alive(int(n)) for n in re.findall(r"\d{2,9}", name))]
