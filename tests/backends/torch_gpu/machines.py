"""Made-up machines: the files a driver shows, a torch build, and a driver that answers as told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from thalweg.backends.torch_gpu.host import HostRuntime
from thalweg.backends.torch_gpu.platform import GpuProperties
from thalweg.hal.comm import Communicator, Solo
from thalweg.hal.platform import Place


def write(root: Path, name: str, text: str = "") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def torch_folder(root: Path, version: str = "2.13.0", **built: str) -> Path:
    """torch/version.py as the wheels have it."""
    lines = [f"__version__ = '{version}'", "debug = False"]
    for kind in ("cuda", "hip", "rocm", "xpu"):
        lines.append(f"{kind}: Optional[str] = {built[kind]!r}" if kind in built else f"{kind}: Optional[str] = None")
    write(root, "site/torch/version.py", "\n".join(lines) + "\n")
    return root / "site" / "torch"


def nvidia(root: Path, *models: str) -> None:
    for i, model in enumerate(models):
        write(root, f"dev/nvidia{i}")
        text = f"Model: \t\t {model}\nIRQ:   \t\t {i}\nGPU UUID: \t GPU-0\nBus Type: \t PCIe\n"
        write(root, f"proc/driver/nvidia/gpus/0000:0{i}:00.0/information", text)


def amd(root: Path, *versions: tuple[int, int]) -> None:
    """(gfx_target_version, GiB) of each GPU; node 0 is the processor."""
    write(root, "dev/kfd")
    nodes = "sys/class/kfd/kfd/topology/nodes"
    write(root, f"{nodes}/0/properties", "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\n")
    for i, (version, gib) in enumerate(versions, 1):
        write(root, f"{nodes}/{i}/properties", f"cpu_cores_count 0\nsimd_count 1216\ngfx_target_version {version}\n")
        write(root, f"{nodes}/{i}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {gib << 30}\nflags 0\n")


def intel(root: Path, *devices: str) -> None:
    for i, device in enumerate(devices):
        write(root, f"sys/bus/pci/drivers/xe/0000:0{i}:00.0")
        write(root, f"sys/bus/pci/devices/0000:0{i}:00.0/device", device + "\n")


@dataclass
class FakeDriver:
    """Says what it was given; its devices are the host's."""

    devices: list[GpuProperties] = field(default_factory=list)
    broken: str | None = None

    def why_not(self) -> str | None:
        return self.broken

    def count(self) -> int:
        return len(self.devices)

    def look(self, index: int) -> GpuProperties:
        return self.devices[index]

    def runtime(self, index: int) -> HostRuntime:
        return HostRuntime(memory_bytes=1 << 30)

    def communicator(self, place: Place) -> Communicator:
        return Solo()


def opened(name: str, arch: str, gib: int, free: int | None = None) -> GpuProperties:
    return GpuProperties(name, arch, gib << 30, (gib if free is None else free) << 30, 100, {"torch": "2.13.0"})
