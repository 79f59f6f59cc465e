"""Facts of the host that need no tensor framework: memory, cores, instruction sets, driver files. Linux names. Where
a file is missing (another system), the standard library's answer is used. `root` lets tests use a made-up tree.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path("/")


def has_torch() -> bool:
    """Is the framework installed? Looks, does not import."""
    return find_spec("torch") is not None


def host_memory(root: Path = ROOT) -> tuple[int, int]:
    """(total, available) bytes of this machine, or of this container where it is allowed less."""
    total, free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 0
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            total = int(line.split()[1]) * 1024
        elif line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    free = free or total
    for limit, used in (
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        allowed = _read(root / limit).strip()
        if allowed.isdecimal() and int(allowed) < total:
            total = int(allowed)
            free = min(free, max(0, total - int(_read(root / used).strip() or 0)))
    return total, free


def process_memory(root: Path = ROOT) -> int:
    """Private bytes of this process (without mapped files). 0 where the system does not say."""
    for line in _read(root / "proc/self/status").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def cores(root: Path = ROOT, allowed: set[int] | None = None) -> int:
    """Physical cores this process may use: its affinity, one hardware thread per core, and the container's quota."""
    if allowed is None:
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = {_read(root / f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list").strip() or str(n) for n in allowed}
    quota = _quota(root)
    return max(1, min(len(siblings), quota) if quota else len(siblings))


def _quota(root: Path) -> int:
    """Whole cores of the container's time quota. 0 = unlimited."""
    words = _read(root / "sys/fs/cgroup/cpu.max").split()
    if len(words) == 2 and words[0] != "max":
        return max(1, int(words[0]) // int(words[1]))
    quota, period = (_read(root / f"sys/fs/cgroup/cpu/cpu.cfs_{name}_us").strip() or "-1" for name in ("quota", "period"))
    return max(1, int(quota) // int(period)) if int(quota) > 0 and int(period) > 0 else 0


def cpu_name(root: Path = ROOT) -> str:
    for line in _read(root / "proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "CPU"


def cpu_flags(root: Path = ROOT) -> frozenset[str]:
    """Instruction sets as /proc/cpuinfo names them. Empty where there is none."""
    for line in _read(root / "proc/cpuinfo").splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def found(patterns: Sequence[str], root: Path = ROOT) -> list[str]:
    """Paths under `root` that match any of the glob patterns (relative), sorted."""
    return sorted({f"/{p.relative_to(root)}" for pattern in patterns for p in root.glob(pattern)})


def pci_devices(vendor: str, devices: Sequence[str], root: Path = ROOT) -> list[str]:
    """Addresses of PCI devices with this vendor and one of these device ids ("0x" and four digits)."""
    folders = sorted((root / "sys/bus/pci/devices").glob("*"))
    return [f.name for f in folders if _read(f / "vendor").strip() == vendor and _read(f / "device").strip() in devices]


def pci_devices_of(vendor: str, classes: Sequence[str], root: Path = ROOT) -> list[str]:
    """Addresses of PCI devices of this vendor and one of these classes (the first six characters of its class file)."""
    folders = sorted((root / "sys/bus/pci/devices").glob("*"))
    return [f.name for f in folders if _read(f / "vendor").strip() == vendor and _read(f / "class").strip()[:6] in classes]


def pci_id(address: str, root: Path = ROOT) -> str:
    """Device id ("0x" and four digits) of the PCI device at this address. "" if there is none."""
    return _read(root / "sys/bus/pci/devices" / address / "device").strip()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
