"""Attention of a second loop over the layers: to the first loop's keys and values, and to near ones of its own, mixed by a gate
for each head. Caches are passed through, never kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.ops.pointwise import sigmoid
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.attention import select_backend
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.weights import ParamSpec


class _Attending:
    """Rotary positions and attention to one cache."""

    def __init__(self, ctx: Context, spec: declared.Attention, place: MixerRef) -> None:
        assert spec.rope is not None
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.backend, self._place = select_backend(ctx, self.spec), place
        self._rope = ctx.bind(
            ops.rope, rotary_dim=spec.rope.dim, interleaved=spec.rope.interleaved, heads=self.spec.heads,
            kv_heads=self.spec.kv_heads, head_dim=spec.head_dim,
        )  # fmt: skip

    def __call__(self, q: Array, k: Array, v: Array, flow: Flow) -> tuple[Array, Array]:
        """(the output [T, heads, n], q after rotation). q, k: before it."""
        at = self._place
        q, k = self._rope(q, k, flow.batch.positions if flow.rows is None else flow.rows, flow.tables[at.table])
        out, flow.caches[at.layer] = self.backend.attend(
            q, k, v.contiguous(), flow.caches[at.layer], flow.batch, at.group, self.spec
        )
        return out, q


class LoopedHeads:
    """x [T, hidden] -> `flow.heads` and `flow.mixed`."""

    def __init__(self, ctx: Context, spec: declared.LoopedHeads, weights: Mapping[str, Any], place: MixerRef) -> None:
        ctx.share(spec.first.heads, "attention heads")
        ctx.share_heads(spec.first.kv_heads, "key-value heads")
        self._place, self._head_dim = place, spec.first.head_dim
        self._qkv, self._attend = Linear(ctx, weights["qkv"]), _Attending(ctx, spec.first, place)
        self.spec, self.backend = self._attend.spec, self._attend.backend
        self.layout: Any = ()
        gate = {name: ParamSpec(w, ctx.dtype) for name, w in weights["gate"].items()}
        self.specs: dict[str, Any] = {"qkv": self._qkv.specs, "gate": gate}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> None:
        parts = self._qkv(p["qkv"], x, flow).split(self._qkv.outputs, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self._head_dim)) for part in parts)
        keys = flow.keys[self._place.layer]
        out, turned = self._attend(q, keys.k, keys.v, flow)
        logits = (turned * p["gate"]["weight"]).sum(-1, keepdim=True) + p["gate"]["bias"][:, None]
        gate = sigmoid(logits.to(torch.float32)).to(out.dtype)
        flow.heads, flow.mixed = (q, k, v), (out * gate, 1 - gate)


class LoopedAttention:
    """`flow.heads` and `flow.mixed` -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: declared.LoopedAttention, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._attend, self._out = _Attending(ctx, spec.near, place), RowLinear(ctx, weights["out"])
        self.spec, self.backend = self._attend.spec, self._attend.backend
        self.layout: Any = self.backend.layout(self.spec, ctx.block_tokens)
        self.specs: dict[str, Any] = {"out": self._out.specs}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        assert flow.heads is not None
        assert flow.mixed is not None
        far, by = flow.mixed
        out, _ = self._attend(*flow.heads, flow)
        return self._out(p["out"], (far + by * out).flatten(-2), flow)
