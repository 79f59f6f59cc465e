"""An absent GPU: steps of a model run on tensors without memory, and the compilations of their kernels are noted.

Everything above the device is as on a real one: the model, the chosen kernels, sizes and strides. Only
values are missing, so nothing may look at one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from thalweg.backends.eager import to_torch
from thalweg.backends.torch_gpu.library import AheadKernels, KernelSet, assemble, triton_with
from thalweg.backends.torch_gpu.staging import views
from thalweg.backends.triton_kernels import cross_compile
from thalweg.errors import DeviceError
from thalweg.hal.device import Device, DeviceInfo, Memory
from thalweg.hal.kv import KVLayout
from thalweg.hal.platform import (
    CompiledKernel,
    CrossCompiler,
    Defaults,
    Limits,
    ModelInfo,
    Parallel,
    Place,
    Platform,
    Probe,
    StepSizes,
    Topology,
)
from thalweg.hal.step import Features, Params, StateBox, Step, StepBatch, StepResult, StepShape, lay_out, unpack
from thalweg.hal.weights import DENSE, WeightFormat

if TYPE_CHECKING:
    from thalweg.backends.torch_gpu.platform import GpuPlatform

NOWHERE = torch.device("meta")
MEMORY = 1 << 42
"""Bytes it claims to have: no model is too large to be compiled for."""
CORES = 100


class _Never:
    """The result of a step that computed nothing."""

    def ready(self) -> bool:
        return True

    def result(self) -> StepResult:
        raise RuntimeError("an absent device has no results")


class CompileOnlyDevice(Device):
    """Every array is a size and a type."""

    def __init__(self, info: DeviceInfo, parts: KernelSet) -> None:
        self.info, self.kernels, self.attention = info, parts.kernels, parts.attention

    def memory(self) -> Memory:
        return Memory(MEMORY, MEMORY)

    def put(self, t: Any) -> Tensor:
        return to_torch(t).to(NOWHERE)

    def normal(self, shape: tuple[int, ...], dtype: str, *, std: float, seed: int) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=NOWHERE)

    def alloc_kv(self, layout: KVLayout, blocks: int) -> Tensor:
        return self.alloc((blocks, *layout.shape), layout.dtype)

    def alloc(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=NOWHERE)

    def compile(self, step: Step, params: Params, state: StateBox, shape: StepShape | None, features: Features | None) -> Any:
        """The step on arrays that lie in one buffer, as a batch's do on a device: kernels get the same alignments."""

        def run(batch: StepBatch) -> _Never:
            layout, n = lay_out(batch)
            arrays = views(torch.empty(n, dtype=torch.uint8, device=NOWHERE), layout)
            with torch.inference_mode():
                state.value, _ = step(params, state.value, unpack(batch, arrays))
            return _Never()

        return run

    def read_blocks(self, kv: Any, blocks: np.ndarray) -> bytes:
        raise NotImplementedError("an absent device has no values")


class CompileOnlyPlatform(Platform):
    """The facts of a GPU platform for every device of this architecture, and an absent device."""

    def __init__(self, base: GpuPlatform, arch: str, ahead: AheadKernels) -> None:
        self._base, self._arch, self._ahead = base, arch, ahead
        self.name, self.options = base.name, base.options

    def with_options(self, options: Any) -> Self:
        result = super().with_options(options)
        result._base = self._base.with_options(options)
        return result

    def probe(self) -> Probe:
        return Probe(1, f"compiles for {self._arch}, which need not be here")

    def _info(self) -> DeviceInfo:
        return self._base._info(self._arch, self._arch, MEMORY, CORES, {})

    def defaults(self, model: ModelInfo, device: DeviceInfo) -> Defaults:
        return self._base.defaults(model, device)

    def buckets(self, defaults: Defaults, limits: Limits) -> tuple[StepShape, ...]:
        """None: kernels are the same for a bucket and for an unpadded batch."""
        return ()

    def packs(self, dtype: str, format: WeightFormat = DENSE) -> bool:
        return self._base.packs(dtype, format)

    def dense_share(self, dtype: str) -> float:
        return self._base.dense_share(dtype)

    def quantised_bytes(self, format: WeightFormat, outputs: int, inputs: int) -> int:
        return self._base.quantised_bytes(format, outputs, inputs)

    def workspace(self, s: StepSizes) -> int:
        return 0

    def topology(self, want: Parallel) -> Topology:
        return self._base.topology(want)

    def open(self, place: Place) -> Device:
        options = self._base.options
        kernels = triton_with(options, self._arch)
        parts = assemble(
            self._arch,
            self._base.vendors(self._ahead),
            kernels,
            unshown=options.unshown_products,
            fused_rounding=options.fused_rounding,
        )
        for source, why in parts.absent:
            if source == "triton":
                raise DeviceError(f"device: nothing to compile: {why}")
        return CompileOnlyDevice(self._info(), parts)


class GpuCrossCompiler(CrossCompiler):
    """See `Platform.absent`. Triton's driver is replaced in this process, for good."""

    def __init__(self, base: GpuPlatform, arch: str, cache: Path | None) -> None:
        """DeviceError: this Triton compiles nothing for that architecture."""
        try:
            cross_compile.install(arch)
        except ValueError as e:
            raise DeviceError(f"arch: {e}") from e
        if cache is not None:
            cross_compile.keep_in(cache)
        self._notes, self._ahead = cross_compile.LaunchRecorder(), AheadKernels(self.cache)
        self.platform = CompileOnlyPlatform(base, arch, self._ahead)
        self._notes.attend()

    @property
    def cache(self) -> Path:
        return cross_compile.cache_folder()

    def kernels(self) -> list[tuple[str, str]]:
        """Those of vendor libraries last."""
        return [(key, w.name) for key, w in self._notes.wanted.items()] + [(key, key) for key in self._ahead.tasks()]

    def compile(self, key: str) -> CompiledKernel:
        if (make := self._ahead.tasks().get(key)) is not None:
            return make()
        result = self._notes.make(self._notes.wanted[key])
        return CompiledKernel(result.seconds, result.cached)
