"""Differential attention: one attention over keys padded to the size of two heads of values, and the difference of its
halves."""

from __future__ import annotations

from collections.abc import Mapping
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
        self._start = spec.start
        self._difference_norm = ctx.bind(ops.rms_norm, size=2 * spec.head_dim, eps=spec.eps)
        self.specs["lambda"] = {name: ParamSpec(w, ctx.dtype) for name, w in weights["lambda"].items()}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        q, k, v = (t.unflatten(-1, (-1, self._head_dim)) for t in self._apart(self._qkv(p["qkv"], x, flow)))
        q, k = (F.pad(t, (0, self._head_dim)) for t in (q, k))
        v = torch.cat(v.chunk(2, 1), -1).repeat(1, 2, 1)
        out = flow.cut(self._attend(p, q, KeysValues(k, v, None), flow, self._place))
        first, second = out.chunk(2, 1)
        one, two = (self._factor(p["lambda"], i) for i in (1, 2))
        normed = self._difference_norm((first - (one - two + self._start) * second).contiguous())
        return self._out(p["out"], ((1 - self._start) * normed).flatten(-2), flow, read=True)

    def _factor(self, p: Mapping[str, Any], number: int) -> Array:
        by = (p[f"lambda_q{number}"] * p[f"lambda_k{number}"]).to(torch.float32).sum()
        return by.exp().to(p["lambda_q1"].dtype)
