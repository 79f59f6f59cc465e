"""Ops over recurrent state as their bodies compute them, on the cache itself and not on a copy."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thalweg.hal.op import Kernel
from thalweg.hal.ops.conv import convolve
from thalweg.hal.ops.delta import rule_in_place
from thalweg.hal.ops.rwkv import average_in_place, general_rule_in_place
from thalweg.hal.ops.ssm import linear_in_place, scan_in_place, ssd_in_place
from thalweg.hal.ops.xlstm import matrix_in_place


def _conv(
    x: Tensor, weight: Tensor, held: Tensor, table: Tensor, context: Tensor, query: Tensor, last_row: Tensor,
    token_seq: Tensor, bias: Tensor | None = None, *, act: str = "silu",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    y, write, kept = convolve(x, weight, held, table, context, query, last_row, token_seq, bias=bias, act=act)
    return y, held.index_put_((write,), kept)


def _rule(*args: Any) -> tuple[Tensor, Tensor]:
    return rule_in_place(*args)


RECURRENCE = (
    Kernel("causal_conv", "in-place", _conv, batch_invariant=True),
    Kernel("delta_rule", "in-place", _rule, batch_invariant=True),
    Kernel("channel_delta_rule", "in-place", _rule, batch_invariant=True),
    Kernel("selective_scan", "in-place", scan_in_place, batch_invariant=True),
    Kernel("linear_scan", "in-place", linear_in_place, batch_invariant=True),
    Kernel("decaying_average", "in-place", average_in_place, batch_invariant=True),
    Kernel("general_delta_rule", "in-place", general_rule_in_place, batch_invariant=True),
    Kernel("matrix_lstm", "in-place", matrix_in_place, batch_invariant=True),
    Kernel("ssd_scan", "in-place", ssd_in_place, batch_invariant=True),
)
