"""What Mimi's encoder and decoder share: the layers of their transformers, and the vectors of codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.ops.activation import activate
from thalweg.hal.step import Array
from thalweg.models import spec
from thalweg.models.layers.rotary import cos_sin_table
from thalweg.models.voices.convolutions import normalise, rotate

Parts = Mapping[Any, Any]
LEAST_USE = 1e-5
"""Of a code's count, by which its sum of vectors is divided."""


def code_vectors(table: Parts, codes: Array) -> Array:
    """codes [T] of one codebook -> f32[T, inner_codes]."""
    result: Array = table["sums"][codes] / table["uses"][codes].clamp(min=LEAST_USE)[:, None]
    return result


def read_places(s: spec.MimiSpec, x: Array) -> Array:
    """The rotary table of all places of x [T, hidden]."""
    return cos_sin_table(s.rope.parameters, s.hidden // s.heads, s.rope.trained, len(x)).to(x.device)


def run_layer(s: spec.MimiSpec, p: Parts, x: Array, table: Array) -> Array:
    """x [T, hidden] -> the same. A place attends to itself and to the `window` - 1 places before it."""
    n = len(x)
    y = normalise(p["norm1"], x, s.eps)
    q, k, v = (functional.linear(y, p[c]["matrix"], p[c].get("bias")).view(n, -1, s.hidden // s.heads) for c in "qkv")
    q, k = (rotate(each.transpose(0, 1), table) for each in (q, k))
    k, v = (each.repeat_interleave(s.heads // s.kv_heads, 0) for each in (k, v.transpose(0, 1)))
    y = _attend(q, k, v, s.window).transpose(0, 1).reshape(n, -1)
    x = x + p["scale1"] * functional.linear(y, p["out"]["matrix"], p["out"].get("bias"))
    y = activate(functional.linear(normalise(p["norm2"], x, s.eps), p["up"]["matrix"]), s.act)
    return x + p["scale2"] * functional.linear(y, p["down"]["matrix"])


def _attend(q: Array, k: Array, v: Array, window: int) -> Array:
    """[heads, T, size], in blocks as long as the window, so that memory grows with T and not with its square. A block attends
    to itself and to the one before."""
    n = q.shape[1]
    place, parts = torch.arange(n, device=q.device), list[Array]()
    for at in range(0, n, window):
        first, end = max(0, at - window + 1), min(n, at + window)
        behind = place[at:end, None] - place[first:end]
        seen = (behind >= 0) & (behind < window)
        parts.append(functional.scaled_dot_product_attention(q[:, at:end], k[:, first:end], v[:, first:end], seen))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
