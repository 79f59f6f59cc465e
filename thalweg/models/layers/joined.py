"""A layer's part whose input norm and first product are one op, on devices with a kernel for both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.hal import ops
from thalweg.hal.op import BoundOp
from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.norm import BoundNorm, RMSNorm


class NormedPart:
    """A mixer or feed-forward part behind its norm. Parts that have one declare `entry`: the key and the layer of the product
    that is the only reader of their input, and `finish(p, y, flow)`: the part after it."""

    def __init__(self, op: BoundOp, key: str, part: Any) -> None:
        self._op, self._key, self._finish = op, key, part.finish

    def __call__(
        self, norm: Mapping[str, Any], p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow
    ) -> tuple[Array, Array]:
        """(the part's output, x + residual). norm, p: parameters of the norm and the part. residual None: x is the sum."""
        entry = p[self._key]
        y, total = self._op(x, residual, norm["weight"], entry["weight"], entry.get("bias"))
        return self._finish(p, y, flow), total


def offer_joined(ctx: Context, norm: BoundNorm | None, part: Any) -> NormedPart | None:
    """None where the device has no kernel for both, or the part does not begin with one product of a norm with weights."""
    entry = getattr(part, "entry", None)
    if entry is None or not isinstance(norm, RMSNorm) or not norm.weighted:
        return None
    key, linear = entry
    op = linear.offer(ctx, ops.rms_norm_linear, **norm.facts)
    return None if op is None else NormedPart(op, key, part)
