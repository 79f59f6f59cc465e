"""Attention of encoders with torch's fused attention, a sequence at a time: what is computed for one depends on no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from thalweg.hal.attention import AttentionBackend, AttnSpec, whole_sequences
from thalweg.hal.kv import KVLayout
from thalweg.hal.step import StepBatch


class EncoderAttention(AttentionBackend):
    """Nothing is kept, so its blocks have no bytes."""

    name = "torch-encoder"
    batch_invariant = True

    def supports(self, spec: AttnSpec) -> str | None:
        if spec.kind != "encoder":
            return f"runs kind encoder, not {spec.kind}"
        if spec.dtype not in ("float32", "bfloat16"):
            return f"runs float32 and bfloat16, not {spec.dtype}"
        if spec.heads % spec.kv_heads:
            return f"{spec.heads} heads do not share {spec.kv_heads} KV heads evenly"
        if spec.softcap or spec.sinks:
            return "the fused attention underneath has no softcap and no sinks"
        return None

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        return KVLayout((0,), spec.dtype, "none")

    def metadata(self, batch: StepBatch, group: int, *rest: Any) -> Mapping[str, Any]:
        """ "spans": (first row, one past the last) of every sequence, as numbers, so that a device need not be asked for them.
        None where each sequence has one token: what it sees is itself."""
        spans = whole_sequences(batch)
        return {} if batch.uniform == 1 else {"spans": tuple((s.start, s.stop) for s in spans)}

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        grouped = spec.heads != spec.kv_heads
        if batch.uniform == 1:
            return v.repeat_interleave(spec.heads // spec.kv_heads, 1), kv
        out = torch.zeros_like(q)
        found = batch.metadata[group]["spans"] if batch.metadata else [(s.start, s.stop) for s in whole_sequences(batch)]
        for first, stop in found:
            rows = slice(first, stop)
            one, keys, values = (x[rows].transpose(0, 1).contiguous()[None] for x in (q, k, v))
            made = F.scaled_dot_product_attention(one, keys, values, scale=spec.scale, enable_gqa=grouped)
            out[rows] = made[0].transpose(0, 1)
        return out, kv
