"""What platforms say about a machine, on made-up machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from thalweg.backends import host
from thalweg.backends.cpu import CpuOptions, CpuPlatform
from thalweg.backends.tpu import TpuPlatform
from thalweg.errors import DeviceError
from thalweg.hal.platform import Place


def _write(root: Path, name: str, text: str = "") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_a_tpu_is_known_by_its_pci_ids(tmp_path: Path) -> None:
    _write(tmp_path, "sys/bus/pci/devices/0000:00:04.0/vendor", "0x1ae0\n")
    _write(tmp_path, "sys/bus/pci/devices/0000:00:04.0/device", "0x0042\n")  # the same vendor's network card
    assert "found (no" in TpuPlatform(tmp_path).probe().reason
    _write(tmp_path, "sys/bus/pci/devices/0000:00:05.0/vendor", "0x1ae0\n")
    _write(tmp_path, "sys/bus/pci/devices/0000:00:05.0/device", "0x006f\n")
    assert "0000:00:05.0" in TpuPlatform(tmp_path).probe().reason


def test_cores_are_physical_allowed_and_within_the_quota(tmp_path: Path) -> None:
    for n, pair in enumerate(("0,2", "1,3", "0,2", "1,3")):
        _write(tmp_path, f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list", pair + "\n")
    assert host.cores(tmp_path, {0, 1, 2, 3}) == 2
    assert host.cores(tmp_path, {0, 2}) == 1
    _write(tmp_path, "sys/fs/cgroup/cpu.max", "100000 100000\n")
    assert host.cores(tmp_path, {0, 1}) == 1
    _write(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert host.cores(tmp_path, {0, 1}) == 2


def test_memory_is_the_container_s_where_it_is_less(tmp_path: Path) -> None:
    _write(tmp_path, "proc/meminfo", "MemTotal: 8000 kB\nMemFree: 1 kB\nMemAvailable: 6000 kB\n")
    assert host.host_memory(tmp_path) == (8000 * 1024, 6000 * 1024)
    _write(tmp_path, "sys/fs/cgroup/memory.max", f"{1000 * 1024}\n")
    _write(tmp_path, "sys/fs/cgroup/memory.current", f"{300 * 1024}\n")
    assert host.host_memory(tmp_path) == (1000 * 1024, 700 * 1024)


def test_cpu_options_are_checked() -> None:
    with pytest.raises(DeviceError, match="threads"):
        CpuPlatform().with_options(CpuOptions(threads=-1)).open(Place())
    with pytest.raises(DeviceError, match="CpuOptions"):
        CpuPlatform().with_options({"threads": 1}).open(Place())
    assert CpuPlatform().with_options(CpuOptions(threads=1)).open(Place()).info.cores == 1
