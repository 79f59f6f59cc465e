"""Self-attention with grouped queries: projections, optional norms of q and k, rotary positions, and the attention backend
the device offers for it. The cache is passed through, never kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from thalweg.errors import DeviceError
from thalweg.hal import ops
from thalweg.hal.attention import TAKES_TURNED, AttentionBackend, AttnSpec, Turn, choose_attention
from thalweg.hal.op import Choice
from thalweg.hal.step import Array, StepBatch
from thalweg.models.context import Context
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.layers.norm import norm_specs
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
        self.layout = self.backend.layout(self.spec, ctx.block_tokens)
        self.specs: dict[str, Any] = {"qkv": self._qkv.specs, "out": self._out.specs}
        if shape.norm_eps is not None:
            self.specs |= {norm: norm_specs(ctx, f"{name}.{norm}", d) for norm in ("q_norm", "k_norm")}
        turn = Turn(d, eps=shape.norm_eps)
        self._attend = (_Turned if _offered(ctx, self.backend, self.spec, turn) else _Ops)(ctx, self.backend, self.spec, turn)

    def __call__(
        self, p: Mapping[str, Any], x: Array, kv: Array, batch: StepBatch, group: int, cos_sin: Array
    ) -> tuple[Array, Array]:
        q, k, v = (t.unflatten(-1, (-1, self._head_dim)) for t in self._qkv(p["qkv"], x).split(self._qkv.outputs, dim=-1))
        out, kv = self._attend(p, q, k, v, kv, batch, group, cos_sin)
        return self._out(p["out"], out.flatten(-2)), kv


class _Turned:
    """Norms, rotary positions and attention, all the backend's."""

    def __init__(self, ctx: Context, backend: AttentionBackend, spec: AttnSpec, turn: Turn) -> None:
        self._backend, self._spec, self._turn = backend, spec, turn

    def __call__(
        self, p: Mapping[str, Any], q: Array, k: Array, v: Array, kv: Array, batch: StepBatch, group: int, cos_sin: Array
    ) -> tuple[Array, Array]:
        weights = None if self._turn.eps is None else (p["q_norm"]["weight"], p["k_norm"]["weight"])
        return self._backend.attend_turned(q, k, v, kv, batch, group, self._spec, self._turn, cos_sin, weights)


class _Ops:
    """The same with an op for each, for backends that attend and no more."""

    def __init__(self, ctx: Context, backend: AttentionBackend, spec: AttnSpec, turn: Turn) -> None:
        self._backend, self._spec = backend, spec
        self._rope = ctx.bind(
            ops.rope, rotary_dim=turn.rotary_dim, interleaved=turn.interleaved, heads=spec.heads, kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
        )  # fmt: skip
        self._norm = None if turn.eps is None else ctx.bind(ops.rms_norm, eps=turn.eps, size=spec.head_dim)

    def __call__(
        self, p: Mapping[str, Any], q: Array, k: Array, v: Array, kv: Array, batch: StepBatch, group: int, cos_sin: Array
    ) -> tuple[Array, Array]:
        if self._norm is not None:
            q, k = self._norm(q, p["q_norm"]["weight"]), self._norm(k, p["k_norm"]["weight"])
        q, k = self._rope(q, k, batch.positions, cos_sin)
        return self._backend.attend(q, k, v, kv, batch, group, self._spec)


def _offered(ctx: Context, backend: AttentionBackend, spec: AttnSpec, turn: Turn) -> bool:
    """Does the backend do this turn? Recorded, unless it offers none to anybody: the lines of the ops say enough then."""
    why = backend.turns(spec, turn)
    if why != TAKES_TURNED:
        facts = {"heads": spec.heads, "kv_heads": spec.kv_heads, "head_dim": spec.head_dim, "dtype": spec.dtype, **asdict(turn)}
        kernel, refused = (backend.name, ()) if why is None else ("ops", ((backend.name, why),))
        ctx.binder.record(Choice("attend_turned", facts, kernel, why is None and backend.batch_invariant, refused))
    return why is None


def _choose(ctx: Context, spec: AttnSpec) -> AttentionBackend:
    try:
        backend, refused = choose_attention(
            ctx.attention, spec, batch_invariant=ctx.binder.batch_invariant, block_tokens=ctx.block_tokens
        )
    except ValueError as e:
        raise DeviceError(str(e)) from e
    ctx.binder.record(Choice("attention", asdict(spec), backend.name, backend.batch_invariant, refused))
    return backend
