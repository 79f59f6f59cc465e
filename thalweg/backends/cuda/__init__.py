"""NVIDIA GPUs: how to find them, the known cards, and NVIDIA's kernel libraries in use. Imports no framework."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from thalweg.backends.host import found, pci_devices_of
from thalweg.backends.torch_gpu.arch import Card, Known, recognise
from thalweg.backends.torch_gpu.platform import GpuPlatform
from thalweg.hal.platform import StepSizes

if TYPE_CHECKING:
    from thalweg.backends.torch_gpu.library import AheadKernels, Vendor

NODES = "dev/nvidia[0-9]*"
VENDOR = "0x10de"
CARDS: Known = (
    (r"GB300|B300", "sm_103", 288), (r"GB200|B200", "sm_100", 180), (r"GH200", "sm_90", 96), (r"H200", "sm_90", 141),
    (r"H100 NVL", "sm_90", 94), (r"H100|H800", "sm_90", 80), (r"H20\b", "sm_90", 96), (r"A100|A800", "sm_80", 40),
    (r"A30\b", "sm_80", 24), (r"A40\b|RTX A6000", "sm_86", 48), (r"A10G?\b|RTX A5000", "sm_86", 24), (r"A16\b", "sm_86", 16),
    (r"RTX A4000", "sm_86", 16), (r"RTX A2000|A2\b", "sm_86", 16), (r"L40S?\b|RTX 6000 Ada", "sm_89", 48),
    (r"L4\b", "sm_89", 24),
    (r"RTX PRO 6000", "sm_120", 96), (r"RTX 5090", "sm_120", 32), (r"RTX 50[78]0", "sm_120", 16), (r"RTX 50\d0", "sm_120", 8),
    (r"RTX 4090", "sm_89", 24), (r"RTX 40[78]0", "sm_89", 12), (r"RTX 40\d0", "sm_89", 8), (r"RTX 3090", "sm_86", 24),
    (r"RTX 3080", "sm_86", 10), (r"RTX 30\d0", "sm_86", 8), (r"GB10\b", "sm_121", 128), (r"Thor", "sm_110", 128),
    (r"Orin", "sm_87", 32), (r"T4\b|Quadro RTX|RTX 20\d0|TITAN RTX", "sm_75", 8), (r"V100|TITAN V", "sm_70", 16),
    (r"P100", "sm_60", 16), (r"P40|P4\b|GTX 10", "sm_61", 8),
)  # fmt: skip
"""Memory by product name. A name that states no memory counts as its smallest variant."""
FLASHINFER_BYTES = 128 << 20
"""Scratch memory that flashinfer asks for."""


class CudaPlatform(GpuPlatform):
    name = "cuda"
    hardware = "NVIDIA GPU"
    build = "cuda"
    wheels = "https://download.pytorch.org/whl/cu130"
    absentees = ("sm_",)

    def cards(self) -> Sequence[Card]:
        """Names from the driver's /proc files. Where a container hides those, only the device nodes."""
        nodes = found((NODES,), self._root)
        if not nodes:
            return ()
        result = []
        for path in found(("proc/driver/nvidia/gpus/*/information",), self._root):
            text = (self._root / path[1:]).read_text()
            model = re.search(r"^Model:\s*(.+?)\s*$", text, re.M)
            name = model[1] if model else self.hardware
            result.append(Card(name, *recognise(name, CARDS), path.split("/")[-2]))
        return result[: len(nodes)] or [Card(self.hardware, "", 0, node) for node in nodes]

    def vendors(self, ahead: AheadKernels | None = None) -> tuple[Vendor, ...]:
        from thalweg.backends.cuda import flash3, flash4, flashinfer
        from thalweg.backends.torch_gpu import flash2
        from thalweg.backends.torch_gpu.library import Vendor

        load = partial(flash4.load, unshown=self.options.unshown_products, ahead=ahead)
        compiled = (Vendor(flash4.NAME, (), True, load, lazy=False),) if self.options.flash_attn_4 else ()
        return *compiled, *(Vendor(m.NAME, (), True, m.load) for m in (flash3, flashinfer, flash2))

    def workspace(self, s: StepSizes) -> int:
        """flashinfer, where there is one, serves only where results may depend on the batch."""
        return super().workspace(s) + (FLASHINFER_BYTES if not s.batch_invariant and find_spec("flashinfer") else 0)

    def unseen(self) -> str:
        bus = pci_devices_of(VENDOR, ("0x0300", "0x0302"), self._root)
        if bus:
            return (
                f"{self.hardware} on the bus ({', '.join(bus[:4])}) without its driver (no /{NODES}); install NVIDIA's driver, "
                "or give this container the device (--gpus all)"
            )
        return f"no {self.hardware} found (no /{NODES})"
