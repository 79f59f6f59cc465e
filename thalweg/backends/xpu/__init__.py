"""Intel GPUs: how to find them, and the known cards. Imports no framework."""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.backends.host import found, pci_devices_of, pci_id
from thalweg.backends.torch_gpu.arch import GIB, Card
from thalweg.backends.torch_gpu.platform import GpuPlatform

NODES = ("sys/bus/pci/drivers/xe/0000:*", "sys/bus/pci/drivers/i915/0000:*")
VENDOR = "0x8086"
CARDS: dict[str, tuple[str, str, int]] = {
    "0xe20b": ("Intel Arc B580", "xe2", 12), "0xe20c": ("Intel Arc B570", "xe2", 10),
    "0xe210": ("Intel Arc Pro B50", "xe2", 16),
    "0xe211": ("Intel Arc Pro B60", "xe2", 24), "0xe212": ("Intel Arc Pro B50", "xe2", 16),
    "0x56a0": ("Intel Arc A770", "xe1hpg", 16), "0x56a1": ("Intel Arc A750", "xe1hpg", 8),
    "0x56a5": ("Intel Arc A380", "xe1hpg", 6), "0x56a6": ("Intel Arc A310", "xe1hpg", 4),
    "0x56c0": ("Intel Data Center GPU Flex 170", "xe1hpg", 16), "0x56c1": ("Intel Data Center GPU Flex 140", "xe1hpg", 6),
    "0x0bd5": ("Intel Data Center GPU Max 1550", "xe1hpc", 128), "0x0bd6": ("Intel Data Center GPU Max 1550", "xe1hpc", 128),
    "0x0bda": ("Intel Data Center GPU Max 1100", "xe1hpc", 48), "0x0bdb": ("Intel Data Center GPU Max 1100", "xe1hpc", 48),
    "0x64a0": ("Intel Arc 140V", "xe2", 0), "0x6420": ("Intel Graphics (Lunar Lake)", "xe2", 0),
}  # fmt: skip
"""PCI device id -> (name, arch, GiB). GiB 0 = the host's memory."""


class XpuPlatform(GpuPlatform):
    name = "xpu"
    hardware = "Intel GPU"
    build = "xpu"
    wheels = "https://download.pytorch.org/whl/xpu"
    score = 60
    """Below a discrete card of another vendor: many processors include one of these."""

    def cards(self) -> Sequence[Card]:
        result = []
        for path in found(NODES, self._root):
            address = path.rsplit("/", 1)[1]
            name, arch, gib = CARDS.get(pci_id(address, self._root), (self.hardware, "", 0))
            result.append(Card(name, arch, gib * GIB, address))
        return result

    def unseen(self) -> str:
        bus = pci_devices_of(VENDOR, ("0x0300", "0x0380"), self._root)
        if bus:
            return f"{self.hardware} on the bus ({', '.join(bus[:4])}) without its driver (xe or i915); update the kernel"
        return f"no {self.hardware} found (no {' or '.join('/' + f for f in NODES)})"
