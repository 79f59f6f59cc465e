"""Self-attention with grouped queries: projections, optional norms of q and k, rotary positions, and the device's attention
backend. The cache is passed through, never kept.

A layer that reads another's cache stores the same keys and values there again. Backends always store the keys that they attend
to, so they need no special case for such layers."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from thalweg.errors import DeviceError
from thalweg.hal import ops
from thalweg.hal.attention import NOT_FUSED, AttentionBackend, AttnSpec, QKPrologue, choose_attention
from thalweg.hal.op import BoundOp, KernelChoice
from thalweg.hal.ops.pointwise import softplus
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, KeysValues, MixerRef
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.layers.low_rank import LowRankProduct
from thalweg.models.layers.norm import BoundNorm, HeadLayerNorm, build_norm, norm_facts
from thalweg.models.layers.ranks import GatheredNorm, HeadParts
from thalweg.models.spec.attention import PLACES
from thalweg.models.weights import ParamSpec, Weight, table_source
from thalweg.quantization.cache import FLOAT8, CacheScales, scales

SELDOM = ("spans", "reach", "placed", "index", "top")
"""Facts that the kernel plan prints only where they are set."""
PAGE = 256
"""Positions are split into a multiple of this and a remainder: both are exact in bfloat16."""


class Attention:
    """x [T, hidden] -> [T, hidden], or only the sampled rows."""

    cuts = True

    def __init__(self, ctx: Context, spec: declared.Attention, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._head_dim, self._place, self._grouped, self._grows = spec.head_dim, place, spec.groups_heads, spec.grows
        self._first, self._reads, self._own_gate = spec.first, spec.reads is not None, bool(spec.gate)
        self._clip = spec.clip
        self._value_dim, self._value_scale = spec.value_dim or spec.head_dim, spec.value_scale
        self._slopes = _Slopes(ctx, spec, place.layer) if spec.slopes and spec.causal else None
        ctx.share(spec.heads, "attention heads")
        (ctx.share if spec.groups_heads else ctx.share_heads)(spec.kv_heads, "key-value heads")
        self._qkv = Linear(ctx, weights["qkv"])
        self._out = RowLinear(ctx, weights["out"])
        self._low = None if spec.low_rank is None else LowRankProduct(ctx, weights["low"])
        self.entry = ("qkv", self._qkv) if self._low is None else None
        """The only reader of its input (`joined.NormedPart`)."""
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.backend, self.spec = _chosen_any(ctx, self.spec)
        self.layout: Any = () if self._reads else self.backend.layout(self.spec, ctx.block_tokens)
        self.specs: dict[str, Any] = {"qkv": self._qkv.specs, "out": self._out.specs}
        if self._low is not None:
            self.specs["low"] = self._low.specs
        norms = {k: weights[k] for k in ("q_norm", "k_norm") if k in weights}
        self._wide: dict[str, BoundNorm | HeadLayerNorm | GatheredNorm] = {}
        self._whole_norm: Any = None
        if spec.out_norm is not None:
            parts_of = HeadParts(ctx.mesh.tensor, spec.heads)
            norm = build_norm(ctx, spec.out_norm, weights["out_norm"])
            self._whole_norm = norm if parts_of.whole else GatheredNorm(norm, parts_of)
            self.specs["out_norm"] = norm.specs
        self._value_norm = None
        if spec.norm is not None and spec.norm.value and not self._reads:
            self._value_norm = ctx.bind(ops.rms_norm, size=spec.head_dim, **norm_facts(spec.norm.eps, 0.0))
        self._out_norm = ctx.bind(ops.rms_norm, size=self._value_dim, eps=spec.out_eps) if spec.out_eps else None
        if spec.norm is not None and spec.norm.whole:
            whole = {k: build_norm(ctx, _norm_of(spec.norm, w), w) for k, w in norms.items()}
            heads = {"q_norm": spec.heads, "k_norm": spec.kv_heads}
            parts = {k: HeadParts(ctx.mesh.tensor, heads[k]) for k in norms}
            self._wide = {k: norm if parts[k].whole else GatheredNorm(norm, parts[k]) for k, norm in whole.items()}
        elif spec.norm is not None and (spec.norm.mean or spec.norm.apart):
            self._wide = {k: HeadLayerNorm(ctx, spec.norm, spec.head_dim, w) for k, w in norms.items()}
        self.specs |= {k: {name: ParamSpec(each, ctx.dtype) for name, each in w.items()} for k, w in norms.items()}
        if self._slopes is not None:
            self.specs["slopes"] = self._slopes.spec
        elif spec.slopes:
            weight = Weight((table_source(f"slopes of layer {place.layer}", spec.heads),), 0)
            self.specs["slopes"] = ParamSpec(weight, "float32", make=partial(torch.tensor, spec.slopes, dtype=torch.float32))
        if "sinks" in weights:
            self.specs["sinks"] = ParamSpec(weights["sinks"], ctx.dtype)
        if spec.relative is not None:
            self.specs["relative"] = ParamSpec(weights["relative"], "float32")
            _buckets(spec.relative.buckets, spec.relative.distance, spec.causal)  # before any step
        name = weights["out"]["weight"].sources[0].name.removesuffix(f".{spec.out}.weight")
        if self._reads:  # the scales are those of the layer that wrote the cache
            name = name.replace(f".{place.of}.", f".{spec.reads}.")
        found = scales(ctx.formats, name) if self.spec.kv_dtype in FLOAT8 else None
        self.cache_scales = found.names if found else ()
        """Names of the checkpoint's tensors that hold scales of this layer's cache."""
        change = found if found and (found.key, found.value) != (1.0, 1.0) else None
        self._attend = _attending(ctx, spec, self.backend, self.spec, change)
        self._gate: Any = None
        if spec.softplus:
            self._gate = _softplus_mul
        elif spec.gate_heads:
            self._gate = partial(_heads_mul, ctx.bind(ops.sigmoid_mul, size=spec.head_dim))
        elif spec.gated or spec.gate:
            self._gate = ctx.bind(ops.sigmoid_mul, size=self.spec.heads * spec.head_dim)

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        return self.finish(p, self._qkv(p["qkv"], x, flow), flow, x)

    def finish(self, p: Mapping[str, Any], qkv: Array, flow: Flow, x: Array | None = None) -> Array:
        """The layer after its first product. x: the input, for layers that read it again."""
        qkv = qkv.clamp(-self._clip, self._clip) if self._clip else qkv
        q, *kv = self._apart(qkv if self._low is None else qkv + self._low(p["low"], x, flow))
        gate = kv.pop() if self._own_gate else None
        if self._gate is not None and gate is None:
            q, gate = (t.flatten(-2) for t in q.unflatten(-1, (-1, 2, self._head_dim)).unbind(-2))
        if self._wide:
            q, kv[0] = self._wide["q_norm"](p["q_norm"], q), self._wide["k_norm"](p["k_norm"], kv[0])
        q = q.unflatten(-1, (-1, self._head_dim))
        if self._grows is not None:  # before rotation, which changes no lengths, so that backends may fuse that
            beta, every = self._grows
            q = grown(q, flow.batch.positions + self._first, beta, every)
        keys = self._keys(p, kv, flow)
        if self._slopes is not None:
            q, keys = self._slopes(p["slopes"], q, keys, flow.batch.positions)
        out = self._attend(p, q, keys, flow, self._place)
        if out.shape[-1] != self._value_dim:
            out = out[..., : self._value_dim]
        out = out if self._out_norm is None else self._out_norm(out)
        out = flow.cut(out.flatten(-2))
        out = out if self._whole_norm is None else self._whole_norm(p["out_norm"], out)
        return self._out(p["out"], out if self._gate is None else self._gate(out, flow.cut(gate)), flow, read=True)

    def _keys(self, p: Mapping[str, Any], kv: Sequence[Array], flow: Flow) -> KeysValues:
        """Keys and values of this layer, or of the layer whose cache it reads."""
        if self._reads:
            return flow.keys[self._place.layer]
        k = kv[0].unflatten(-1, (-1, self._head_dim))
        v = kv[1].unflatten(-1, (-1, self._value_dim)) if len(kv) > 1 else k
        v = v if self._value_scale == 1.0 else v * self._value_scale
        if self._value_dim != self._head_dim:
            v = F.pad(v, (0, self._head_dim - self._value_dim))
        keys = KeysValues(
            k, v if self._value_norm is None else self._value_norm(v), p["k_norm"]["weight"] if "k_norm" in p else None
        )
        if self._place.read:
            flow.keys[self._place.layer] = keys
        return keys

    def _apart(self, qkv: Array) -> Sequence[Array]:
        """Split the projection's output into q, k, v and a gate, [T, heads * head_dim] each, as far as present."""
        if not self._grouped:
            parts: Sequence[Array] = qkv.split(self._qkv.outputs, dim=-1)
            return parts
        per = self.spec.heads // self.spec.kv_heads
        parts = qkv.unflatten(-1, (self.spec.kv_heads, per + 2, self._head_dim)).split((per, 1, 1), dim=-2)
        q, k, v = (part.flatten(-3) for part in parts)
        return q, k, v


def grown(q: Array, positions: Array, beta: float, every: int) -> Array:
    """q [T, heads, n] times 1 + beta * log(1 + floor(position / every))."""
    growth = 1 + beta * torch.log(1 + torch.div(positions, every, rounding_mode="floor").to(torch.float32))
    return q * growth.to(q.dtype)[:, None, None]


def _softplus_mul(x: Array, gate: Array) -> Array:
    """x [T, heads * n] times softplus of gate, which is as wide, or [T, heads]."""
    by = softplus(gate.to(torch.float32)).to(x.dtype)
    return x * by if by.shape == x.shape else (x.unflatten(-1, (by.shape[-1], -1)) * by.unsqueeze(-1)).flatten(-2)


def _heads_mul(mul: BoundOp, x: Array, gate: Array) -> Array:
    """x [T, heads * n] times the sigmoid of gate [T, heads]."""
    by = gate.contiguous().unsqueeze(-1)
    return mul(x.unflatten(-1, (by.shape[1], -1)), by).flatten(-2)


class _Slopes:
    """Scores that decrease with distance (ALiBi), as a part of the product of q and k: -slope * (i - j) equals slope * j plus
    a number that all of a query's scores share. Every backend therefore supports them."""

    def __init__(self, ctx: Context, spec: declared.Attention, layer: int) -> None:
        self._more = spec.kept_dim - spec.head_dim
        weight = Weight((table_source(f"slopes of layer {layer}", spec.heads, self._more),), 0)
        self.spec = ParamSpec(weight, "float32", make=partial(_slope_table, spec, ctx.dtype))

    def __call__(self, table: Array, q: Array, keys: KeysValues, positions: Array) -> tuple[Array, KeysValues]:
        """table f32[heads, n]: as `spec` declares it."""
        high = torch.div(positions, PAGE, rounding_mode="floor")
        place = torch.stack([high, positions - high * PAGE] * 2, -1).to(q.dtype)
        place = F.pad(place, (0, self._more - PLACES))[:, None]
        k = torch.cat((keys.k, place.expand(-1, keys.k.shape[1], -1)), -1)
        by = table.to(q.dtype)[None].expand(q.shape[0], -1, -1)
        return torch.cat((q, by), -1), replace(keys, k=k, v=F.pad(keys.v, (0, self._more)))


def _slope_table(spec: declared.Attention, dtype: str) -> torch.Tensor:
    """f32[heads, kept_dim - head_dim]: q's factors of positions, each slope as two numbers of dtype with the slope as sum."""
    exact = torch.tensor(spec.slopes, dtype=torch.float64) / (spec.scale or spec.head_dim**-0.5)
    large = exact.to(getattr(torch, dtype)).to(torch.float64)
    small = (exact - large).to(getattr(torch, dtype)).to(torch.float64)
    by = torch.stack([large * PAGE, large, small * PAGE, small], -1)
    return F.pad(by, (0, spec.kept_dim - spec.head_dim - PLACES)).to(torch.float32)


class _Fused:
    """Norms, rotary positions and attention, all the backend's. Scales come before the norms, so there must be none."""

    def __init__(self, backend: AttentionBackend, spec: AttnSpec, prologue: QKPrologue, scales: CacheScales | None) -> None:
        self._backend, self._spec, self._prologue, self._scales = backend, spec, prologue, scales

    def __call__(self, p: Mapping[str, Any], q: Array, keys: KeysValues, flow: Flow, at: MixerRef) -> Array:
        q, k, v = _scale_qkv(self._scales, q, keys.k, keys.v)
        weights = None if self._prologue.eps is None else (p["q_norm"]["weight"], keys.weight)
        out, flow.caches[at.layer] = self._backend.attend_fused(
            q,
            k,
            v,
            flow.caches[at.layer],
            flow.batch,
            at.group,
            self._spec,
            self._prologue,
            flow.tables[at.table],
            weights,
            p.get("sinks"),
        )
        return out if self._scales is None else out * self._scales.value


class AttentionOps:
    """The same with separate ops, for backends without fused attention. prologue None: NoPE."""

    def __init__(
        self, ctx: Context, backend: AttentionBackend, spec: AttnSpec, prologue: QKPrologue | None, norm: QKPrologue | None,
        scales: CacheScales | None, after: bool = False,
    ) -> None:  # fmt: skip
        """after: the norms follow rotation."""
        self._backend, self._spec, self._scales, self._after = backend, spec, scales, after
        self._rope = self._norm = None
        if prologue is not None:
            self._rope = ctx.bind(
                ops.rope, rotary_dim=prologue.rotary_dim, interleaved=prologue.interleaved,
                heads=spec.heads, kv_heads=spec.kv_heads,
                head_dim=spec.head_dim,
            )  # fmt: skip
        if norm is not None and norm.eps is not None:
            self._norm = ctx.bind(ops.rms_norm, size=spec.head_dim, **norm_facts(norm.eps, norm.offset))

    def __call__(self, p: Mapping[str, Any], q: Array, keys: KeysValues, flow: Flow, at: MixerRef) -> Array:
        k, v, weight = keys.k, keys.v, keys.weight
        if not self._after:
            q, k = self._normalize_qk(p, q, k, weight)
        if self._rope is not None:
            q, k = self._rotate(q, k, flow, at)
        if self._after:
            q, k = self._normalize_qk(p, q, k, weight)
        q, k, v = _scale_qkv(self._scales, q, k, v)
        cache = flow.caches[at.layer]
        if self._spec.reach:
            if "slopes" in p:
                slopes = p["slopes"]
                bias = slopes[:, None] * fall_table(self._spec.reach, slopes.device)
            else:
                bias = p["relative"]
                causal = self._spec.kind != "encoder"
                bias = bias[bucket_table(bias.shape[0], self._spec.reach, causal, bias.device)].T.contiguous()
            out, cache = self._backend.attend_biased(q, k, v, cache, flow.batch, at.group, self._spec, bias)
        else:
            out, cache = self._backend.attend(q, k, v, cache, flow.batch, at.group, self._spec, p.get("sinks"))
        flow.caches[at.layer] = cache
        return out if self._scales is None else out * self._scales.value

    def _rotate(self, q: Array, k: Array, flow: Flow, at: MixerRef) -> tuple[Array, Array]:
        assert self._rope is not None
        rows = flow.batch.positions if flow.rows is None else flow.rows
        first: tuple[Array, Array] = self._rope(q, k, rows, flow.tables[at.table])
        if at.table not in flow.second:
            return first
        half = self._spec.head_dim // 2
        both = zip(first, self._rope(q, k, rows, flow.second[at.table]), strict=True)
        q, k = (torch.cat([a[..., :half], b[..., half:]], -1) for a, b in both)
        return q, k

    def _normalize_qk(self, p: Mapping[str, Any], q: Array, k: Array, weight: Array | None) -> tuple[Array, Array]:
        """weight: of k's norm; None: neither has one."""
        if self._norm is None:
            return q, k
        return (
            (self._norm(q), self._norm(k)) if weight is None else (self._norm(q, p["q_norm"]["weight"]), self._norm(k, weight))
        )


@functools.cache
def _buckets(buckets: int, distance: int, causal: bool) -> Array:
    """i64[2 * distance + 1]: the bucket of each distance, from keys before the query to keys after it. Made on the host, so
    that no device's logarithm decides."""
    apart = torch.arange(-distance, distance + 1)
    if causal:  # keys after the query are not seen
        apart = apart.clamp(max=0)
    half, far = buckets if causal else buckets // 2, apart.abs()
    near = half // 2
    wide = torch.log(far.clamp(min=1).float() / near) / math.log(distance / near) * (half - near)
    return torch.where(far < near, far, (near + wide.long()).clamp(max=half - 1)) + half * (apart > 0)


@functools.cache
def fall_table(reach: int, device: torch.device) -> Array:
    """f32[2 * reach + 1]: the negated distance of each key, on a device."""
    return -torch.arange(-reach, reach + 1, dtype=torch.float32).abs().to(device)


@functools.cache
def bucket_table(buckets: int, distance: int, causal: bool, device: torch.device) -> Array:
    """`_buckets` on a device."""
    return _buckets(buckets, distance, causal).to(device)


class _Either:
    """The backend's fused op, except in steps with several position axes: it reads the table at the positions by which it
    finds the cache."""

    def __init__(self, fused: _Fused, apart: AttentionOps) -> None:
        self._fused, self._apart = fused, apart

    def __call__(self, p: Mapping[str, Any], q: Array, keys: KeysValues, flow: Flow, at: MixerRef) -> Array:
        return (self._fused if flow.rows is None else self._apart)(p, q, keys, flow, at)


def _scale_qkv(scales: CacheScales | None, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Keys and values as they are cached. q is multiplied by the scale of keys, so that scores are unchanged. The caller
    multiplies attention's output by the scale of values."""
    return (q, k, v) if scales is None else (q * scales.key, k / scales.key, v / scales.value)


def _norm_of(norm: declared.HeadNorm, weights: Mapping[str, Any]) -> declared.Norm | declared.LayerNorm:
    size = weights["weight"].sources[0].shape[0]
    return declared.LayerNorm("", size, norm.eps) if norm.mean else declared.Norm("", size, norm.eps, norm.offset)


def _attending(
    ctx: Context, spec: declared.Attention, backend: AttentionBackend, attn: AttnSpec, scales: CacheScales | None
) -> _Fused | AttentionOps | _Either:
    per_head = spec.norm if spec.norm is not None and not (spec.norm.whole or spec.norm.mean or spec.norm.apart) else None
    eps, offset = (per_head.eps, per_head.offset) if per_head else (None, 0.0)
    rope = spec.rope
    prologue = QKPrologue(rope.dim if rope else 0, rope.interleaved if rope else False, eps, offset)
    between = scales is not None and eps is not None  # norms would cancel scales applied before them
    after = per_head is not None and per_head.after
    alone = after or between or (per_head is not None and not per_head.weight)
    if rope is not None and not rope.given and not alone and _can_fuse(ctx, backend, attn, prologue):
        fused = _Fused(backend, attn, prologue, scales)
        return _Either(fused, AttentionOps(ctx, backend, attn, prologue, prologue, scales)) if rope.sections else fused
    return AttentionOps(ctx, backend, attn, prologue if rope else None, prologue, scales, after)


def _can_fuse(ctx: Context, backend: AttentionBackend, spec: AttnSpec, prologue: QKPrologue) -> bool:
    """Does the backend do this? Recorded, unless it offers none to anybody: the lines of the ops say enough then."""
    why = backend.fuses(spec, prologue)
    if why != NOT_FUSED:
        facts = {
            "heads": spec.heads,
            "kv_heads": spec.kv_heads,
            "head_dim": spec.head_dim,
            "dtype": spec.dtype,
            **asdict(prologue),
        }
        kernel, refused = (backend.name, ()) if why is None else ("ops", ((backend.name, why),))
        ctx.binder.record(KernelChoice("attend_fused", facts, kernel, why is None and backend.batch_invariant, refused))
    return why is None


def _chosen_any(ctx: Context, spec: AttnSpec) -> tuple[AttentionBackend, AttnSpec]:
    """Where no backend lets tokens see those behind them, the model is served without: its images are refused."""
    if spec.spans:
        try:
            return select_backend(ctx, spec), spec
        except DeviceError:
            spec = replace(spec, spans=False)
    return select_backend(ctx, spec), spec


def select_backend(ctx: Context, spec: AttnSpec) -> AttentionBackend:
    """The device's backend for this, noted in the kernel plan. DeviceError if there is none."""
    try:
        backend, refused = choose_attention(
            ctx.attention, spec, batch_invariant=ctx.binder.batch_invariant, block_tokens=ctx.block_tokens
        )
    except ValueError as e:
        raise DeviceError(str(e)) from e
    facts = {key: value for key, value in asdict(spec).items() if value or key not in SELDOM}
    ctx.binder.record(KernelChoice("attention", facts, backend.name, backend.batch_invariant, refused))
    return backend
