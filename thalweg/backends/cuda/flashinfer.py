"""flashinfer (Ye et al. 2025, github.com/flashinfer-ai/flashinfer), where it is installed, for steps that hold
prompts.

Interface: 0.2 to 0.6, `BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")`, `plan` and `run`. Its pages are our
blocks. Its `plan` is host work for each step that leaves its result on the device. A replayed graph has no place for
that, so the partner does decodes, which are captured. Never run on a GPU here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.backends.cuda import FLASHINFER_BYTES
from thalweg.backends.torch_gpu import paged
from thalweg.backends.torch_gpu.arch import arch_of
from thalweg.backends.torch_gpu.library import KernelSet
from thalweg.backends.torch_gpu.packages import function, loading
from thalweg.hal.attention import AttnSpec
from thalweg.hal.step import StepBatch, StepShape

NAME = "flashinfer"
FAMILIES = ("Ampere", "Ada", "Hopper", "Blackwell")


class FlashInferAttention(paged.LibraryAttention):
    """make: the wrapper's class. One wrapper per KV group: it keeps the data of its last `plan` on the device."""

    name = NAME
    sizes = (64, 128, 256)

    def __init__(self, make: Callable[..., Any], partner: paged.PagedBackend) -> None:
        super().__init__(partner)
        self._make = make
        self._workspace: Tensor | None = None
        self._wrappers: dict[tuple[int, AttnSpec], Any] = {}
        self._once = paged.StepCache()
        self._copied: Callable[[], None] = _nothing

    def metadata(self, batch: StepBatch, group: int, spec: AttnSpec, shape: StepShape | None) -> Mapping[str, Any]:
        """The partner's where the step is its own. Otherwise {"lengths": i32[n]} of the n real sequences and, as
        numbers, "held": the same, and "new": their new tokens."""
        if paged.even(batch, shape):
            planned: Mapping[str, Any] = self._partner.metadata(batch, group, spec, shape)
            return planned
        n = paged.real(batch)
        held = paged.lengths(batch)[:n]
        return {"lengths": held, "held": tuple(held.tolist()), "new": tuple(batch.query[:n].tolist())}

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        plan = batch.metadata[group]
        if "held" not in plan:
            return self._partner.attend(q, k, v, kv, batch, group, spec, sinks)
        self._partner.store(k, v, kv, batch, group, spec)
        rows = sum(plan["new"])
        if not rows:
            return q.new_zeros(q.shape), kv
        wrapper = self._once.of(plan, group, lambda: self._plan(plan, kv, batch.block_tables[group], group, spec))
        return paged.whole(wrapper.run(q[:rows].contiguous(), kv), q.shape[0]), kv

    def _plan(self, plan: Mapping[str, Any], kv: Tensor, table: Tensor, group: int, spec: AttnSpec) -> Any:
        """The group's wrapper, planned for this step. It copies to the device from a private buffer, which must not be written
        again before the copy is done."""
        size, held, n = kv.shape[2], np.array(plan["held"], np.int32), len(plan["held"])
        wrapper = self._wrapper(kv.device, group, spec)
        each = -(-held // size)
        _, used, _ = paged.pages(table[:n], plan["lengths"], int(each.sum()), size)
        self._copied()
        dtype = getattr(torch, spec.dtype)
        wrapper.plan(
            _host(paged.starts(plan["new"])), _host(paged.starts(each)), used, _host((held - 1) % size + 1), spec.heads,
            spec.kv_heads, spec.head_dim, size, causal=True, sm_scale=spec.scale, window_left=spec.window - 1,
            logits_soft_cap=spec.softcap, q_data_type=dtype, kv_data_type=dtype,
        )  # fmt: skip
        self._copied = _when_done(kv.device)
        return wrapper

    def _wrapper(self, device: torch.device, group: int, spec: AttnSpec) -> Any:
        if self._workspace is None:
            self._workspace = torch.zeros(FLASHINFER_BYTES, dtype=torch.uint8, device=device)
        key = (group, spec)
        if key not in self._wrappers:
            self._wrappers[key] = self._make(self._workspace, "NHD")
        return self._wrappers[key]


def _host(a: np.ndarray) -> Tensor:
    return torch.from_numpy(a.astype(np.int32))


def _nothing() -> None:
    return


def _when_done(device: torch.device) -> Callable[[], None]:
    """Waits until the device has finished this thread's stream as of now."""
    if device.type == "cpu":
        return _nothing
    event: Any = torch.Event(device)
    event.record()
    wait: Callable[[], None] = event.synchronize
    return wait


def load(arch: str) -> KernelSet:
    if arch_of(arch).family not in FAMILIES:
        raise RuntimeError(f"runs on sm_80 and later, not {arch}")
    with loading("flashinfer"):
        import flashinfer
    make: Any = function(flashinfer, "BatchPrefillWithPagedKVCacheWrapper", "float_workspace_buffer", "kv_layout")
    function(make, "plan", "causal", "sm_scale", "window_left", "logits_soft_cap", "q_data_type", "kv_data_type")
    function(make, "run", "paged_kv_cache")
    return KernelSet(attention=(FlashInferAttention(make, paged.partner(arch)),))
