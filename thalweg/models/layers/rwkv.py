"""RWKV: time mixing and channel mixing. The state of a sequence is in the block of the group's table. It is passed through,
never kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.ops.conv import NONE
from thalweg.hal.ops.pointwise import exponential, sigmoid, tanh
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import normalize_heads
from thalweg.models.layers.recurrent import advance
from thalweg.models.weights import ParamSpec, Weight

LEAST_LOG_DECAY = -0.6065306597126334
"""-exp(-1/2): the logarithm of the fastest decay of RWKV-7."""
TINY = 1e-12
"""Keys shorter than this are not brought to length 1."""


class TokenShift:
    """x [T, width] -> the inputs of the tokens before, zeros before the first: a convolution that reads only those."""

    def __init__(self, ctx: Context, weight: Weight, place: MixerRef) -> None:
        width, self._place = weight.sources[0].shape[0], place
        self._conv = ctx.bind(ops.causal_conv, act=NONE, channels=width, taps=2)
        self.spec = ParamSpec(weight, ctx.dtype, make=partial(_last_tap, width, getattr(torch, ctx.dtype)))

    def __call__(self, taps: Array, x: Array, flow: Flow) -> Array:
        return advance(flow, self._place, 0, lambda held, *rows: self._conv(x, taps, held, *rows))


class _Shifted:
    """What the parts of RWKV share: linear layers by name, and the mixtures of a token's input with the last one."""

    backend = None
    """It attends to nothing, so no attention backend plans for it."""

    def __init__(self, ctx: Context, spec: Any, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place = place
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts
        self._shift = TokenShift(ctx, weights["shift"], place)
        self._linear = {key: Linear(ctx, w) for key, w in weights.items() if isinstance(w, Mapping) and "weight" in w}
        self.specs: dict[str, Any] = {
            "shift": self._shift.spec, "mix": ParamSpec(weights["mix"], ctx.dtype),
            **{key: each.specs for key, each in self._linear.items()},
        }  # fmt: skip

    def _mix(self, p: Mapping[str, Any], x: Array, flow: Flow, forward: bool) -> list[Array]:
        """Each mixture, [T, width]. forward: weights are those of the token's own input, not of the last one."""
        last = self._shift(p["shift"], x, flow)
        begin, apart = (last, x - last) if forward else (x, last - x)
        return [begin + apart * weight for weight in p["mix"].reshape(-1, x.shape[-1]).unbind(0)]

    def _project(self, key: str, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        return self._linear[key](p[key], x, flow)


class ChannelMix(_Shifted):
    """x [T, hidden] -> [T, hidden]. Not divided among ranks."""

    def __init__(self, ctx: Context, spec: declared.ChannelMix, weights: Mapping[str, Any], place: MixerRef) -> None:
        super().__init__(ctx, spec, weights, place)
        self._act = ctx.bind(ops.activation, act="relu2", size=spec.inner)

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        gated = "receptance" in self._linear
        key, *others = self._mix(p, x, flow, gated)
        out = self._project("value", p, self._act(self._project("key", p, key, flow)), flow)
        return out * sigmoid(self._project("receptance", p, others[0], flow)) if gated else out


class AverageMix(_Shifted):
    """x [T, hidden] -> [T, hidden]. Not divided among ranks."""

    def __init__(self, ctx: Context, spec: declared.AverageMix, weights: Mapping[str, Any], place: MixerRef) -> None:
        super().__init__(ctx, spec, weights, place)
        self._average = ctx.bind(ops.decaying_average, channels=spec.inner)
        self.specs |= {key: ParamSpec(weights[key], "float32") for key in ("decay", "bonus")}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        mixed = zip(("key", "value", "receptance"), self._mix(p, x, flow, True), strict=True)
        key, value, receptance = (self._project(name, p, each, flow) for name, each in mixed)
        average = partial(self._average, key.float(), value.float(), -torch.exp(p["decay"]), p["bonus"])
        out = advance(flow, self._place, 1, average).to(x.dtype)
        return self._project("out", p, sigmoid(receptance) * out, flow)


class DeltaMix(_Shifted):
    """x [T, hidden] -> [T, hidden]. Not divided among ranks."""

    def __init__(self, ctx: Context, spec: declared.DeltaMix, weights: Mapping[str, Any], place: MixerRef) -> None:
        named = {key: w for key, w in weights.items() if key != "norm"}
        super().__init__(ctx, spec, named, place)
        self._heads, self._eps, self._first = (spec.heads, spec.head_dim), spec.eps, spec.first
        self._rule = ctx.bind(ops.general_delta_rule, heads=spec.heads, head_dim=spec.head_dim)
        self._low = {part: {k: Linear(ctx, w) for k, w in two.items()} for part, two in weights["low"].items()}
        self.specs["low"] = {part: {k: each.specs for k, each in two.items()} for part, two in self._low.items()}
        self.specs |= {key: ParamSpec(weights[key], "float32") for key in ("key_scale", "key_rate", "bonus")}
        self.specs["norm"] = {key: ParamSpec(w, "float32") for key, w in weights["norm"].items()}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        r, w, k, v, a, g = self._mix(p, x, flow, False)
        value = self._values(p, v, flow)
        read, key = (self._project(part, p, each, flow).float() for part, each in (("r", r), ("k", k)))
        rate = sigmoid(self._of_low_rank("a", p, a, flow).float())
        decay = exponential(LEAST_LOG_DECAY * sigmoid(self._of_low_rank("w", p, w, flow, tanh).float()))
        away = self._split(key * p["key_scale"])
        away = away / (away * away).sum(-1, keepdim=True).sqrt().clamp(min=TINY)
        key = key * (1 + (rate - 1) * p["key_rate"])
        read, key, value = (self._split(each) for each in (read, key, value.float()))
        rule = partial(self._rule, read, self._split(decay), key, value, -away, away * self._split(rate))
        out = normalize_heads(advance(flow, self._place, 1, rule), self._eps, p["norm"]["weight"], p["norm"]["bias"])
        out = out + (read * key * p["bonus"]).sum(-1, keepdim=True) * value
        gate = self._of_low_rank("g", p, g, flow, sigmoid)
        return self._project("out", p, out.flatten(-2).to(x.dtype) * gate, flow)

    def _values(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        """[T, inner]: of the first layer its own, of others a mixture of their own with those."""
        own = self._project("v", p, x, flow)
        if self._first:
            flow.first_values = own
            return own
        assert flow.first_values is not None
        return own + (flow.first_values - own) * sigmoid(self._of_low_rank("v", p, x, flow))

    def _of_low_rank(self, part: str, p: Mapping[str, Any], x: Array, flow: Flow, act: Any = None) -> Array:
        two, p = self._low[part], p["low"][part]
        inside = two["down"](p["down"], x, flow)
        return two["up"](p["up"], inside if act is None else act(inside), flow)

    def _split(self, x: Array) -> Array:
        return x.unflatten(-1, self._heads)


def _last_tap(width: int, dtype: torch.dtype) -> Array:
    """Of a convolution over two tokens: [width, 1, 2]."""
    return torch.tensor([1.0, 0.0], dtype=dtype).repeat(width, 1, 1)
