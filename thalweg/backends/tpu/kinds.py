"""The known TPU generations, as facts: JAX's name, how they show on the bus, and the memory of a device.

A device is one as JAX sees it: a chip, or one of its two halves. Memory is the amount XLA says it may use there (compile a
program that needs more and read the refusal). Imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thalweg.backends.host import ROOT, pci_devices, pci_id
from thalweg.hal.device import DeviceInfo

VENDOR = "0x1ae0"
"""Google's PCI vendor id. It makes network cards too, so device ids decide."""
OTHERS = ("0x0027", "0x0056")
"""Device ids of TPUs too old to be in the table."""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    device_kind: str
    """JAX's name."""
    pci: str
    memory_bytes: int
    """Memory of one device."""
    per_chip: int = 1
    """Devices of a chip."""

    def info(self) -> DeviceInfo:
        notes = {"jax_platform": "tpu", "kind": self.name}
        return DeviceInfo(self.device_kind, "tpu", self.memory_bytes, 1, ("bfloat16", "float32"), notes)


def _gib(n: float) -> int:
    return int(n * (1 << 30))


KINDS = {
    k.name: k
    for k in (
        Kind("v4", "TPU v4", "0x005e", _gib(30.5)),  # both cores of a chip as one device
        Kind("v5e", "TPU v5 lite", "0x0063", _gib(15.75)),
        Kind("v5p", "TPU v5", "0x0062", _gib(95.74)),
        Kind("v6e", "TPU v6 lite", "0x006f", _gib(31.25)),
        Kind("v7x", "TPU7x", "0x0076", _gib(94.75), per_chip=2),
    )
}


def on_the_bus(root: Path = ROOT) -> list[str]:
    """Addresses of TPUs, of every generation."""
    return pci_devices(VENDOR, (*OTHERS, *(k.pci for k in KINDS.values())), root)


def here(root: Path = ROOT) -> Kind | None:
    """The generation on the bus. None: there is none, or the table lacks it."""
    ids = {pci_id(address, root) for address in on_the_bus(root)}
    return next((k for k in KINDS.values() if k.pci in ids), None)
