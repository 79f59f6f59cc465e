"""Layers behind an encoder that halve its states."""

from __future__ import annotations

from collections.abc import Mapping

from torch.nn import functional

from thalweg.hal.step import Array
from thalweg.models import spec
from thalweg.models.vision.activation import activate_clip
from thalweg.models.vision.bound_parts import BoundParts, Parts


def pool_states(s: spec.PoolingAdapter, parts: BoundParts, p: Mapping[int, Parts], x: Array) -> Array:
    """x [T, hidden] -> fewer states. p: of the adapter, whose parts are bound under /adapter."""
    for i in range(s.layers):
        x = _run(s, parts, f"/adapter/{i}", p[i], x)
    return x


def _run(s: spec.PoolingAdapter, parts: BoundParts, at: str, p: Parts, x: Array) -> Array:
    residual = _pool(s, parts, f"{at}/residual", p["residual"], x)
    x = _pool(s, parts, f"{at}/attn", p["attn"], x)
    n = len(x)
    q, k, v = parts.linear(f"{at}/attn/qkv", p["attn"]["qkv"], x).view(n, 3, s.heads, -1).permute(1, 2, 0, 3)[:, None]
    x = functional.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).reshape(n, -1)
    x = parts.linear(f"{at}/attn/out", p["attn"]["out"], x) + residual
    wide = parts.linear(f"{at}/ff/up", p["ff"]["up"], parts.norm(f"{at}/ff/norm", p["ff"]["norm"], x))
    return x + parts.linear(f"{at}/ff/down", p["ff"]["down"], activate_clip(wide, s.act))


def _pool(s: spec.PoolingAdapter, parts: BoundParts, at: str, p: Parts, x: Array) -> Array:
    x = parts.norm(f"{at}/norm", p["norm"], x).T[None]
    x = functional.conv1d(x, p["conv"]["kernel"], p["conv"]["bias"], stride=s.stride, padding=s.stride // 2)
    return functional.glu(x, 1)[0].T.contiguous()
