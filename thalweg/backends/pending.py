"""What a platform says before it has a backend: whether its hardware is there, and that it cannot be used yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thalweg.backends.host import ROOT, found, pci_devices
from thalweg.errors import DeviceError
from thalweg.hal.platform import Defaults, Device, DeviceInfo, ModelFacts, Place, Platform, Probe


class PendingPlatform(Platform):
    """Looks for `files` (glob patterns below the root directory: device nodes of a loaded driver) and `pci` devices."""

    hardware: str
    files: Sequence[str]
    pci: tuple[str, tuple[str, ...]] = ("", ())
    """Vendor id and device ids, where device nodes alone do not tell."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    def probe(self) -> Probe:
        seen = found(self.files, self.root) + pci_devices(*self.pci, self.root)
        if not seen:
            return Probe(0, f"no {self.hardware} found (no {' or '.join('/' + f for f in self.files)})")
        return Probe(0, f"{self.hardware} found ({', '.join(seen[:4])}), but this version has no backend for it yet")

    def defaults(self, model: ModelFacts, device: DeviceInfo) -> Defaults:
        raise DeviceError(f"device: {self.name}: {self.probe().reason}")

    def open(self, place: Place, options: Any = None) -> Device:
        raise DeviceError(f"device: {self.name}: {self.probe().reason}")
