"""Self-attention with grouped queries: projections, optional norms of q and k, rotary positions, and the attention backend
the device offers for it. The cache is passed through, never kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from thalweg.errors import DeviceError
from thalweg.hal import ops
from thalweg.hal.attention import AttentionBackend, AttnSpec, choose_attention
from thalweg.hal.op import Choice
from thalweg.hal.step import Array, StepBatch
from thalweg.models.context import Context
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.layers.norm import RMSNorm
from thalweg.models.settings import Heads


class Attention:
    """x [T, hidden] -> [T, hidden]. window: 0 = every earlier token. `group` says which block table is this layer's."""

    def __init__(self, ctx: Context, name: str, hidden: int, shape: Heads, window: int) -> None:
        d = self._head_dim = shape.head_dim
        parts = {"q_proj": shape.heads * d, "k_proj": shape.kv_heads * d, "v_proj": shape.kv_heads * d}
        ctx.share(shape.kv_heads, "key-value heads")
        self._qkv = Linear(ctx, {f"{name}.{part}": n for part, n in parts.items()}, hidden, shape.qkv_bias)
        self._out = RowLinear(ctx, f"{name}.o_proj", shape.heads * d, hidden, shape.out_bias)
        self.spec = AttnSpec(
            heads=ctx.share(shape.heads, "attention heads"),
            kv_heads=ctx.share(shape.kv_heads, "key-value heads"),
            head_dim=d,
            scale=d**-0.5,
            dtype=ctx.dtype,
            kind="window" if window else "full",
            window=window,
            kv_dtype=ctx.kv_dtype,
        )
        self.backend = _choose(ctx, self.spec)
        self._rope = ctx.bind(
            ops.rope, rotary_dim=d, interleaved=False, heads=self.spec.heads, kv_heads=self.spec.kv_heads, head_dim=d
        )
        self.layout = self.backend.layout(self.spec, ctx.block_tokens)
        self.specs: dict[str, Any] = {"qkv": self._qkv.specs, "out": self._out.specs}
        self._q_norm = self._k_norm = None
        if shape.norm_eps is not None:
            self._q_norm = RMSNorm(ctx, f"{name}.q_norm", d, shape.norm_eps)
            self._k_norm = RMSNorm(ctx, f"{name}.k_norm", d, shape.norm_eps)
            self.specs |= {"q_norm": self._q_norm.specs, "k_norm": self._k_norm.specs}

    def __call__(
        self, p: Mapping[str, Any], x: Array, kv: Array, batch: StepBatch, group: int, cos_sin: Array
    ) -> tuple[Array, Array]:
        q, k, v = (t.unflatten(-1, (-1, self._head_dim)) for t in self._qkv(p["qkv"], x).split(self._qkv.outputs, dim=-1))
        if self._q_norm is not None and self._k_norm is not None:
            q, k = self._q_norm(p["q_norm"], q), self._k_norm(p["k_norm"], k)
        q, k = self._rope(q, k, batch.positions, cos_sin)
        out, kv = self.backend.attend(q, k, v, kv, batch, group, self.spec)
        return self._out(p["out"], out.flatten(-2)), kv


def _choose(ctx: Context, spec: AttnSpec) -> AttentionBackend:
    try:
        backend, refused = choose_attention(
            ctx.attention, spec, batch_invariant=ctx.binder.batch_invariant, block_tokens=ctx.block_tokens
        )
    except ValueError as e:
        raise DeviceError(str(e)) from e
    ctx.binder.record(Choice("attention", asdict(spec), backend.name, backend.batch_invariant, refused))
    return backend
