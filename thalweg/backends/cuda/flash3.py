"""flash-attn 3 (Shah et al. 2024, github.com/Dao-AILab/flash-attention, folder hopper), where it is installed: Hopper's.

Interface: the module `flash_attn_interface` with `flash_attn_with_kvcache`. It accepts pages of any size and, with
`cu_seqlens_q`, sequences with any number of new tokens. Never run on a GPU here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from thalweg.backends.torch_gpu import paged
from thalweg.backends.torch_gpu.library import KernelSet
from thalweg.backends.torch_gpu.packages import function, loading
from thalweg.hal.attention import AttnSpec
from thalweg.hal.step import StepBatch, StepShape

NAME = "flash-attn-3"


class FlashAttention3(paged.LibraryAttention):
    """run: the function of the package."""

    name = NAME

    def __init__(self, run: Callable[..., Any], partner: paged.PagedBackend) -> None:
        super().__init__(partner)
        self._run = run

    def metadata(self, batch: StepBatch, group: int, spec: AttnSpec, shape: StepShape | None) -> Mapping[str, Any]:
        """{"lengths": i32[S]}. Where sequences have different numbers of new tokens, those of the n real ones, with
        "queries": i32[n + 1] where they begin. As numbers "rows", their new tokens, and "longest" of one."""
        held = paged.lengths(batch)
        if paged.even(batch, shape):
            return {"lengths": held}
        n = paged.real(batch)
        new = batch.query[:n]
        return {
            "lengths": held[:n], "queries": paged.starts(new), "rows": int(new.sum()), "longest": int(new.max(initial=0)),
        }  # fmt: skip

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        self._partner.store(k, v, kv, batch, group, spec)
        plan, table = batch.metadata[group], batch.block_tables[group]
        held = plan["lengths"]
        cache: dict[str, Any] = {
            "k_cache": kv[:, 0], "v_cache": kv[:, 1], "cache_seqlens": held, "page_table": table[: held.shape[0]],
            "softmax_scale": spec.scale, "causal": True, "window_size": paged.window(spec), "softcap": spec.softcap,
        }  # fmt: skip
        if "queries" not in plan:
            return self._run(q.view(held.shape[0], -1, *q.shape[1:]), **cache).flatten(0, 1), kv
        rows = plan["rows"]
        if not rows:
            return q.new_zeros(q.shape), kv
        out = self._run(q[:rows], cu_seqlens_q=plan["queries"], max_seqlen_q=plan["longest"], **cache)
        return paged.whole(out, q.shape[0]), kv


def load(arch: str) -> KernelSet:
    if arch != "sm_90":
        raise RuntimeError(f"runs on sm_90, not {arch}")
    with loading("flash_attn_interface"):
        import flash_attn_interface
    run = function(
        flash_attn_interface, "flash_attn_with_kvcache", "cache_seqlens", "page_table", "cu_seqlens_q",
        "max_seqlen_q", "softmax_scale", "causal", "window_size", "softcap",
    )  # fmt: skip
    return KernelSet(attention=(FlashAttention3(run, paged.partner(arch)),))
