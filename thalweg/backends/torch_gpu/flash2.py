"""flash-attn 2 (Dao 2023, github.com/Dao-AILab/flash-attention), where it is installed: NVIDIA's and AMD's GPUs.

Interface: flash_attn 2.6 to 2.8, `flash_attn_varlen_func` and `flash_attn_with_kvcache`. Pages are multiples of 256 tokens:
blocks of the default size are refused. Never run on a GPU here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from thalweg.backends.torch_gpu import paged
from thalweg.backends.torch_gpu.arch import arch_of
from thalweg.backends.torch_gpu.library import KernelSet
from thalweg.backends.torch_gpu.packages import function, loading
from thalweg.hal.attention import AttnSpec
from thalweg.hal.step import StepBatch, StepShape

NAME = "flash-attn"
FAMILIES = ("Ampere", "Ada", "Hopper", "Blackwell", "CDNA2", "CDNA3", "CDNA4")
"""Families that its builds support, except Thor."""


class FlashAttention(paged.LibraryAttention):
    """ragged, cached: the two functions of the package."""

    name = NAME
    multiple = 256

    def __init__(self, ragged: Callable[..., Any], cached: Callable[..., Any], partner: paged.PagedBackend) -> None:
        super().__init__(partner)
        self._ragged, self._cached = ragged, cached

    def metadata(self, batch: StepBatch, group: int, spec: AttnSpec, shape: StepShape | None) -> Mapping[str, Any]:
        """{"lengths": i32[S]} for a step that may be captured, or decodes. Otherwise of the n real sequences
        {"queries", "keys": i32[n + 1]} where they begin. As numbers "rows", their new tokens, "longest" of one and
        "furthest", the keys of one."""
        held = paged.lengths(batch)
        if paged.even(batch, shape):
            return {"lengths": held}
        n = paged.real(batch)
        new = batch.query[:n]
        return {
            "queries": paged.starts(new), "keys": paged.starts(held[:n]), "rows": int(new.sum()),
            "longest": int(new.max(initial=0)), "furthest": int(held.max(initial=0)),
        }  # fmt: skip

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        self._partner.store(k, v, kv, batch, group, spec)
        plan, table, keys, values = batch.metadata[group], batch.block_tables[group], kv[:, 0], kv[:, 1]
        how = {"softmax_scale": spec.scale, "causal": True, "window_size": paged.window(spec), "softcap": spec.softcap}
        if "lengths" in plan:
            by_sequence = q.view(table.shape[0], -1, *q.shape[1:])
            out = self._cached(by_sequence, keys, values, cache_seqlens=plan["lengths"], block_table=table, **how)
            return out.flatten(0, 1), kv
        rows, n = plan["rows"], plan["queries"].shape[0] - 1
        if not rows:
            return q.new_zeros(q.shape), kv
        out = self._ragged(
            q[:rows], keys, values, plan["queries"], plan["keys"], plan["longest"], plan["furthest"], block_table=table[:n],
            **how,
        )  # fmt: skip
        return paged.whole(out, q.shape[0]), kv


def load(arch: str) -> KernelSet:
    if arch_of(arch).family not in FAMILIES or arch == "sm_110":
        raise RuntimeError(f"runs on sm_80 and later and on gfx90a, gfx942 and gfx950, not {arch}")
    with loading("flash_attn"):
        import flash_attn
    options = ("softmax_scale", "causal", "window_size", "softcap", "block_table")
    ragged = function(flash_attn, "flash_attn_varlen_func", "cu_seqlens_k", "max_seqlen_k", *options)
    cached = function(flash_attn, "flash_attn_with_kvcache", "cache_seqlens", *options)
    return KernelSet(attention=(FlashAttention(ragged, cached, paged.partner(arch)),))
