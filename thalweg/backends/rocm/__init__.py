"""AMD GPUs: how to find them, the known cards, and AMD's kernel libraries in use. Imports no framework."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from thalweg.backends.host import found, pci_devices_of
from thalweg.backends.torch_gpu.arch import Card, arch_of
from thalweg.backends.torch_gpu.platform import GpuPlatform

if TYPE_CHECKING:
    from thalweg.backends.torch_gpu.library import AheadKernels, Vendor

NODES = "dev/kfd"
VENDOR = "0x1002"


class RocmPlatform(GpuPlatform):
    name = "rocm"
    hardware = "AMD GPU"
    build = "hip"
    wheels = "https://download.pytorch.org/whl/rocm7.1"
    absentees = ("gfx",)

    def cards(self) -> Sequence[Card]:
        """The kernel driver's topology tells architecture and memory of every node. Nodes without SIMDs are
        processors."""
        if not found((NODES,), self._root):
            return ()
        result = []
        for path in found(("sys/class/kfd/kfd/topology/nodes/*/properties",), self._root):
            node = (self._root / path[1:]).parent
            facts = _facts(node / "properties")
            if facts.get("simd_count", 0) and facts.get("gfx_target_version", 0):
                arch = gfx(facts["gfx_target_version"])
                banks = sorted(node.glob("mem_banks/*/properties"))
                memory = sum(f.get("size_in_bytes", 0) for f in map(_facts, banks) if f.get("heap_type", 1) in (1, 2))
                result.append(Card(f"AMD {arch_of(arch).family} ({arch})", arch, memory, node.name))
        return result

    def vendors(self, ahead: AheadKernels | None = None) -> tuple[Vendor, ...]:
        from thalweg.backends.rocm import aiter
        from thalweg.backends.torch_gpu import flash2
        from thalweg.backends.torch_gpu.library import Vendor

        return tuple(Vendor(m.NAME, (), True, m.load) for m in (aiter, flash2))

    def unseen(self) -> str:
        if found((NODES,), self._root):
            return f"/{NODES} is there, but its topology (/sys/class/kfd) shows no GPU; give this container /dev/dri as well"
        bus = pci_devices_of(VENDOR, ("0x0300", "0x0302", "0x0380", "0x1200"), self._root)
        if bus:
            return (
                f"{self.hardware} on the bus ({', '.join(bus[:4])}) without its driver (no /{NODES}); load amdgpu, or give "
                f"this container the device (--device /{NODES} --device /dev/dri)"
            )
        return f"no {self.hardware} found (no /{NODES})"


def gfx(version: int) -> str:
    """90402 -> "gfx942", 90010 -> "gfx90a", 110000 -> "gfx1100": major, then minor and stepping in hexadecimal."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _facts(path: Path) -> dict[str, int]:
    try:
        return {k: int(v) for k, v in re.findall(r"^(\w+) (\d+)$", path.read_text(), re.M)}
    except OSError:  # a node that this container may not read
        return {}
