"""The vendor's driver through torch: its presence, and its devices with their properties."""

from __future__ import annotations

import re
import warnings
from typing import Any

import torch

from thalweg.backends.torch_comm import TorchCommunicator
from thalweg.backends.torch_gpu.platform import GpuProperties
from thalweg.backends.torch_gpu.runtime import Runtime, TorchRuntime
from thalweg.hal.comm import Communicator
from thalweg.hal.platform import Place

XE: tuple[tuple[str, str], ...] = (
    (r"Arc.* B\d|Battlemage|Pro B\d", "xe2"), (r"Arc.* A\d|Flex|Alchemist", "xe1hpg"), (r"Max 1\d{3}|Ponte Vecchio", "xe1hpc"),
    (r"Arc.* 1[34]0V", "xe2"), (r"Arc.* B3\d\d|Panther Lake", "xe3"), (r"Iris|UHD", "xe1lp"),
)  # fmt: skip
"""Product names, where the driver says no architecture."""


class TorchDriver:
    """build: "cuda", "hip" (its devices are "cuda" in torch) or "xpu"."""

    def __init__(self, build: str) -> None:
        self._build, self._kind = build, "xpu" if build == "xpu" else "cuda"
        self._module: Any = getattr(torch, self._kind)

    def why_not(self) -> str | None:
        if getattr(torch.version, self._build, None) is None:
            return f"torch {torch.__version__} is built for something else"
        with warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always")
            if self._module.is_available():
                return None
        words = " ".join(str(w.message).splitlines()[0] for w in reported)
        return words or "the driver does not answer: it is not loaded, too old for this torch, or hidden from this process"

    def count(self) -> int:
        return int(self._module.device_count())

    def look(self, index: int) -> GpuProperties:
        p = self._module.get_device_properties(index)
        free, total = self._module.mem_get_info(index)
        notes = {"torch": torch.__version__, TITLES_OF[self._build]: str(getattr(torch.version, self._build))}
        cores = getattr(p, "multi_processor_count", 0) or getattr(p, "max_compute_units", 0)
        return GpuProperties(p.name, self._arch(p), int(total), int(free), int(cores or 0), notes)

    def _arch(self, p: Any) -> str:
        if self._build == "cuda":
            return f"sm_{p.major}{p.minor}"
        if self._build == "hip":
            return str(p.gcnArchName).split(":")[0]
        return next((arch for pattern, arch in XE if re.search(pattern, p.name)), "xe1lp")

    def runtime(self, index: int) -> Runtime:
        return TorchRuntime(self._kind, index)

    def communicator(self, place: Place) -> Communicator:
        return TorchCommunicator("xccl" if self._kind == "xpu" else "nccl", place)


TITLES_OF = {"cuda": "cuda", "hip": "rocm", "xpu": "xpu"}
