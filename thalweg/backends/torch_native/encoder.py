"""Attention of encoders with torch's fused attention, a sequence at a time: what is computed for one depends on no other."""

from __future__ import annotations

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

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        out, grouped = torch.zeros_like(q), spec.heads != spec.kv_heads
        for rows in whole_sequences(batch):
            one, keys, values = (x[rows].transpose(0, 1).contiguous()[None] for x in (q, k, v))
            made = F.scaled_dot_product_attention(one, keys, values, scale=spec.scale, enable_gqa=grouped)
            out[rows] = made[0].transpose(0, 1)
        return out, kv
