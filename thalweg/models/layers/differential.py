"""Differential attention: one attention over keys padded to the size of two heads of values, and the difference of its
halves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, KeysValues, MixerRef
from thalweg.models.layers.attention import Attention
from thalweg.models.weights import ParamSpec


class DifferentialAttention(Attention):
    """x [T, hidden] -> [T, hidden], or only the sampled rows."""

    def __init__(self, ctx: Context, spec: declared.DifferentialAttention, weights: Mapping[str, Any], place: MixerRef) -> None:
        super().__init__(ctx, spec, weights, place)
        self._start, self._pairs = spec.start, spec.pairs
        self._difference_norm = ctx.bind(ops.rms_norm, size=2 * spec.head_dim, eps=spec.eps)
        if spec.subnorm:
            self.specs["subnorm"] = {"weight": ParamSpec(weights["subnorm"]["weight"], ctx.dtype)}
        self.specs["lambda"] = {name: ParamSpec(w, ctx.dtype) for name, w in weights["lambda"].items()}

    def finish(self, p: Mapping[str, Any], qkv: Array, flow: Flow, x: Array | None = None) -> Array:
        q, *kv = (self._halves(t.unflatten(-1, (-1, self._head_dim))) for t in self._apart(qkv))
        q = F.pad(q, (0, self._head_dim))
        out = flow.cut(self._attend(p, q, self._wide_keys(kv, flow), flow, self._place))
        first, second = out.chunk(2, 1)
        one, two = (self._factor(p["lambda"], i) for i in (1, 2))
        weight = [p["subnorm"]["weight"]] if "subnorm" in p else []
        normed = self._difference_norm((first - (one - two + self._start) * second).contiguous(), *weight)
        return self._out(p["out"], ((1 - self._start) * normed).flatten(-2), flow, read=True)

    def _halves(self, x: Array) -> Array:
        """Heads [T, heads, n] in the order of halves."""
        return torch.cat(x.unflatten(1, (-1, 2)).unbind(2), 1) if self._pairs else x

    def _wide_keys(self, kv: Sequence[Array], flow: Flow) -> KeysValues:
        """Padded keys, and values of two heads side by side, of this layer or of the layer whose cache it reads."""
        if self._reads:
            return flow.keys[self._place.layer]
        k, v = kv
        keys = KeysValues(F.pad(k, (0, self._head_dim)), torch.cat(v.chunk(2, 1), -1).repeat(1, 2, 1), None)
        if self._place.read:
            flow.keys[self._place.layer] = keys
        return keys

    def _factor(self, p: Mapping[str, Any], number: int) -> Array:
        by = (p[f"lambda_q{number}"] * p[f"lambda_k{number}"]).to(torch.float32).sum()
        return by.exp().to(p["lambda_q1"].dtype)
