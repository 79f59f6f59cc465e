"""Ops over recurrent state as their bodies compute them, on the cache itself instead of a copy of it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thalweg.hal.op import Kernel
from thalweg.hal.ops.conv import convolved
from thalweg.hal.ops.delta import rule_in_place


def _conv(x: Tensor, weight: Tensor, held: Tensor, *rows: Tensor, act: str = "silu") -> tuple[Tensor, Tensor]:
    y, write, kept = convolved(x, weight, held, *rows, act=act)
    return y, held.index_put_((write,), kept)


def _rule(*args: Any) -> tuple[Tensor, Tensor]:
    return rule_in_place(*args)


RECURRENCE = (
    Kernel("causal_conv", "in-place", _conv, batch_invariant=True),
    Kernel("delta_rule", "in-place", _rule, batch_invariant=True),
)
