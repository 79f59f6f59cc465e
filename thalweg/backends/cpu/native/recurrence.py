"""Ops over recurrent state in compiled code: a sequence's tokens one after the other, in place."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thalweg.backends.cpu.native import Library
from thalweg.backends.cpu.native.linear import NAMES, TYPES
from thalweg.hal.op import Kernel

TAPS, WIDEST = 8, 256
"""Limits of recurrent.inc: tokens that a convolution sees, values of a query."""
_L, _P = ctypes.c_int64, ctypes.c_void_p
_SEQS = ("table", "context", "query", "last")


class _Delta(ctypes.Structure):
    """`Delta` of core.h."""

    _fields_ = (
        *((n, _L) for n in ("type", "seqs", "keys", "heads", "key_dim", "value_dim", "columns")),
        *((n, _L) for n in ("q_stride", "k_stride", "v_stride")),
        *((n, _P) for n in (*_SEQS, "q", "k", "v", "decay", "share", "held", "y")),
    )  # fmt: skip


class _Conv(ctypes.Structure):
    """`Conv` of core.h."""

    _fields_ = (
        *((n, _L) for n in ("type", "seqs", "channels", "taps", "columns", "stride")),
        *((n, _P) for n in (*_SEQS, "x", "weight", "held", "y")), ("parts", _L), ("per_task", _L),
    )  # fmt: skip


def _typed(spec: Mapping[str, Any]) -> str | None:
    return None if spec["dtype"] in NAMES else f"runs bfloat16 and float32, not {spec['dtype']}"


def _rules(spec: Mapping[str, Any]) -> str | None:
    wide = spec.get("key_dim", 1)
    return _typed(spec) if wide <= WIDEST else f"queries have at most {WIDEST} values, not {wide}"


def _convolves(spec: Mapping[str, Any]) -> str | None:
    act, taps = spec.get("act", "silu"), spec.get("taps", 2)
    if spec.get("biased"):
        return "has no biases"
    if act != "silu" or taps > TAPS:
        return f"runs silu after at most {TAPS} taps, not {act} after {taps}"
    return _typed(spec)


class Recurrence:
    """The kernels' functions, over one open library."""

    def __init__(self, library: Library) -> None:
        self._library, self._context = library, library.context
        self._delta, self._conv = library.delta, library.conv

    def causal_conv(
        self, x: Tensor, weight: Tensor, held: Tensor, table: Tensor, context: Tensor, query: Tensor, last_row: Tensor,
        token_seq: Tensor, *, act: str = "silu",
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x = x if x.stride(1) == 1 else x.contiguous()
        weight, rows = weight.contiguous(), [a.contiguous() for a in (table, context, query, last_row)]
        channels, taps = x.shape[1], weight.shape[2]
        if held.shape[1:] != (taps - 1, channels) or held.dtype != x.dtype or weight.dtype != x.dtype or taps > TAPS:
            raise ValueError(f"causal_conv: {list(held.shape)} {held.dtype} is no cache for {channels} channels, {taps} taps")
        y = torch.empty(x.shape, dtype=x.dtype)
        job = _Conv(
            TYPES[x.dtype], table.shape[0], channels, taps, table.shape[1], x.stride(0), *(a.data_ptr() for a in rows),
            x.data_ptr(), weight.data_ptr(), held.data_ptr(), y.data_ptr(),
        )  # fmt: skip
        self._conv(self._context, ctypes.addressof(job))
        return y, held

    def delta_rule(
        self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, share: Tensor, held: Tensor, table: Tensor, context: Tensor,
        query: Tensor, last_row: Tensor, token_seq: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        q, k, v = (t if t.stride(2) == 1 and t.stride(1) == t.shape[2] else t.contiguous() for t in (q, k, v))
        decay, share = decay.contiguous(), share.contiguous()
        rows = [a.contiguous() for a in (table, context, query, last_row)]
        (keys, dim), (heads, width) = q.shape[1:], v.shape[1:]
        if held.shape[1:] != (heads, dim, width) or held.dtype != torch.float32 or dim > WIDEST or heads % keys:
            raise ValueError(f"delta_rule: {list(held.shape)} {held.dtype} is no cache for {heads} heads of {dim} x {width}")
        y = torch.empty(v.shape, dtype=v.dtype)
        job = _Delta(
            TYPES[v.dtype], table.shape[0], keys, heads, dim, width, table.shape[1], q.stride(0), k.stride(0), v.stride(0),
            *(a.data_ptr() for a in (*rows, q, k, v, decay, share, held, y)),
        )  # fmt: skip
        self._delta(self._context, ctypes.addressof(job))
        return y, held


def kernels(library: Library) -> tuple[Kernel, ...]:
    ops, name = Recurrence(library), f"native-{library.level}"
    return (
        Kernel("causal_conv", name, ops.causal_conv, _convolves, batch_invariant=True),
        Kernel("delta_rule", name, ops.delta_rule, _rules, batch_invariant=True),
    )
