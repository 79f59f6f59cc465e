"""Ops over recurrent state in compiled code: a sequence's tokens in order, in place."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thalweg.backends.cpu.native import NativeLibrary
from thalweg.backends.cpu.native.linear import NAMES, TYPES
from thalweg.hal.op import Kernel
from thalweg.hal.ops.conv import NONE
from thalweg.hal.ops.ssm import ssd_steps

TAPS, WIDEST = 8, 256
"""Limits of recurrent.inc: tokens that a convolution sees, values of a query or numbers kept per channel."""
CONV_ACTS = {"silu": 0, NONE: 1}
_L, _P = ctypes.c_int64, ctypes.c_void_p
_SEQS = ("table", "context", "query", "last")


class _Delta(ctypes.Structure):
    """`Delta` of core.h."""

    _fields_ = (
        *((n, _L) for n in ("type", "seqs", "keys", "heads", "key_dim", "value_dim", "columns")),
        *((n, _L) for n in ("q_stride", "k_stride", "v_stride", "rates")),
        *((n, _P) for n in (*_SEQS, "q", "k", "v", "decay", "share", "held", "y")),
    )  # fmt: skip


class _Conv(ctypes.Structure):
    """`Conv` of core.h."""

    _fields_ = (
        *((n, _L) for n in ("type", "seqs", "channels", "taps", "columns", "stride")),
        *((n, _P) for n in (*_SEQS, "x", "weight", "held", "y", "bias")), *((n, _L) for n in ("act", "parts", "per_task")),
    )  # fmt: skip


class _Ssd(ctypes.Structure):
    """`Ssd` of core.h."""

    _fields_ = (
        *((n, _L) for n in ("type", "seqs", "groups", "heads", "width", "size", "columns")),
        *((n, _L) for n in ("x_stride", "b_stride", "c_stride")),
        *((n, _P) for n in (*_SEQS, "x", "b", "c", "far", "decay", "skip", "held", "y")),
    )  # fmt: skip


class _Scan(ctypes.Structure):
    """`Scan` of core.h."""

    _fields_ = (
        *((n, _L) for n in ("type", "seqs", "channels", "size", "columns")),
        *((n, _L) for n in ("x_stride", "step_stride", "b_stride", "c_stride", "gate_stride")),
        *((n, _P) for n in (*_SEQS, "x", "step", "b", "c", "gate", "log_rate", "bias", "skip", "held", "y")), ("parts", _L),
    )  # fmt: skip


def _supports_dtype(spec: Mapping[str, Any]) -> str | None:
    return None if spec["dtype"] in NAMES else f"runs bfloat16 and float32, not {spec['dtype']}"


def _rules(spec: Mapping[str, Any]) -> str | None:
    wide = spec.get("key_dim", spec.get("size", 1))
    return _supports_dtype(spec) if wide <= WIDEST else f"queries have at most {WIDEST} values, not {wide}"


def _convolves(spec: Mapping[str, Any]) -> str | None:
    act, taps = spec.get("act", "silu"), spec.get("taps", 2)
    if act not in CONV_ACTS or taps > TAPS:
        return f"runs {' or '.join(CONV_ACTS)} after at most {TAPS} taps, not {act} after {taps}"
    return _supports_dtype(spec)


def _scans(spec: Mapping[str, Any]) -> str | None:
    size = spec.get("state", 1)
    return _supports_dtype(spec) if size <= WIDEST else f"keeps at most {WIDEST} numbers of a channel, not {size}"


def _rows(*rows: Tensor) -> list[Tensor]:
    """The arrays of a batch that the structures have."""
    return [a.contiguous() for a in rows]


def _even(t: Tensor) -> Tensor:
    """The same with contiguous values after the first dimension."""
    dense = t.stride(-1) == 1 and (t.dim() == 2 or t.stride(1) == t.shape[2])
    return t if dense else t.contiguous()


class NativeRecurrence:
    """The kernels' functions, over one open library."""

    def __init__(self, library: NativeLibrary) -> None:
        self._library, self._context = library, library.context
        self._delta, self._conv = library.delta, library.conv
        self._ssd, self._scan = library.ssd, library.scan

    def _keep(self, job: ctypes.Structure, *held: Any) -> int:
        """Its address. While a step is recorded it lives on, as replays read it."""
        if self._library.tape is not None:
            self._library.tape.keep((job, held))
        return ctypes.addressof(job)

    def causal_conv(
        self, x: Tensor, weight: Tensor, held: Tensor, table: Tensor, context: Tensor, query: Tensor, last_row: Tensor,
        token_seq: Tensor, bias: Tensor | None = None, *, act: str = "silu",
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x, weight, rows = _even(x), weight.contiguous(), _rows(table, context, query, last_row)
        channels, taps = x.shape[1], weight.shape[2]
        fits = held.shape[1:] == (taps - 1, channels) and held.dtype == x.dtype and taps <= TAPS
        if not fits or any(a.dtype != x.dtype or len(a) != channels for a in (weight, bias) if a is not None):
            raise ValueError(f"causal_conv: {list(held.shape)} {held.dtype} is no cache for {channels} channels, {taps} taps")
        y = torch.empty(x.shape, dtype=x.dtype)
        job = _Conv(
            TYPES[x.dtype], table.shape[0], channels, taps, table.shape[1], x.stride(0), *(a.data_ptr() for a in rows),
            x.data_ptr(), weight.data_ptr(), held.data_ptr(), y.data_ptr(), None if bias is None else bias.data_ptr(),
            CONV_ACTS[act],
        )  # fmt: skip
        self._conv(self._context, self._keep(job, x, weight, held, y, bias, rows))
        return y, held

    def delta_rule(
        self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, share: Tensor, held: Tensor, table: Tensor, context: Tensor,
        query: Tensor, last_row: Tensor, token_seq: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """And `ops.channel_delta_rule`, which has a decay for each row of a state."""
        q, k, v = (_even(t) for t in (q, k, v))
        decay, share, rows = decay.contiguous(), share.contiguous(), _rows(table, context, query, last_row)
        (keys, dim), (heads, width) = q.shape[1:], v.shape[1:]
        if held.shape[1:] != (heads, dim, width) or held.dtype != torch.float32 or dim > WIDEST or heads % keys:
            raise ValueError(f"delta_rule: {list(held.shape)} {held.dtype} is no cache for {heads} heads of {dim} x {width}")
        rates = 1 if decay.dim() == 2 else dim
        if decay.shape[1:] != ((heads,) if rates == 1 else (heads, dim)):
            raise ValueError(f"delta_rule: {list(decay.shape)} are no decays of {heads} heads of {dim} rows")
        y = torch.empty(v.shape, dtype=v.dtype)
        strides = (t.stride(0) for t in (q, k, v))
        job = _Delta(
            TYPES[v.dtype], table.shape[0], keys, heads, dim, width, table.shape[1], *strides, rates,
            *(a.data_ptr() for a in (*rows, q, k, v, decay, share, held, y)),
        )  # fmt: skip
        self._delta(self._context, self._keep(job, q, k, v, decay, share, held, y, rows))
        return y, held

    def selective_scan(
        self, x: Tensor, step: Tensor, b: Tensor, c: Tensor, gate: Tensor, log_rate: Tensor, bias: Tensor, skip: Tensor,
        held: Tensor, table: Tensor, context: Tensor, query: Tensor, last_row: Tensor, token_seq: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        parts = [_even(t) for t in (x, step, b, c, gate)]
        (channels, size), kind = log_rate.shape, x.dtype
        fits = all(t.dtype == kind for t in parts) and [t.shape[1] for t in parts] == [channels, channels, size, size, channels]
        if not fits or held.shape[1:] != (size, channels) or held.dtype != torch.float32 or size > WIDEST:
            raise ValueError(f"selective_scan: {list(held.shape)} {held.dtype} is no cache for {channels} channels of {size}")
        rates = [a.contiguous() for a in (log_rate, bias, skip)]
        rows, y = _rows(table, context, query, last_row), torch.empty(x.shape, dtype=kind)
        job = _Scan(
            TYPES[kind], table.shape[0], channels, size, table.shape[1], *(t.stride(0) for t in parts),
            *(a.data_ptr() for a in (*rows, *parts, *rates, held, y)),
        )  # fmt: skip
        self._scan(self._context, self._keep(job, parts, rates, held, y, rows))
        return y, held

    def ssd_scan(
        self, x: Tensor, step: Tensor, b: Tensor, c: Tensor, log_rate: Tensor, bias: Tensor, skip: Tensor, held: Tensor,
        table: Tensor, context: Tensor, query: Tensor, last_row: Tensor, token_seq: Tensor, *, low: float = 0.0,
        high: float = float("inf"),
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        parts, (heads, width), (groups, size) = [_even(t) for t in (x, b, c)], x.shape[1:], b.shape[1:]
        fits = all(t.dtype == x.dtype for t in parts) and not heads % groups and size <= WIDEST
        if not fits or held.shape[1:] != (heads, size, width) or held.dtype != torch.float32:
            raise ValueError(f"ssd_scan: {list(held.shape)} {held.dtype} is no cache for {heads} heads of {size} x {width}")
        far, decay = (a.contiguous() for a in ssd_steps(step, log_rate, bias, low, high))
        skip, rows, y = skip.contiguous(), _rows(table, context, query, last_row), torch.empty(x.shape, dtype=x.dtype)
        job = _Ssd(
            TYPES[x.dtype], table.shape[0], groups, heads, width, size, table.shape[1], *(t.stride(0) for t in parts),
            *(a.data_ptr() for a in (*rows, *parts, far, decay, skip, held, y)),
        )  # fmt: skip
        self._ssd(self._context, ctypes.addressof(job))
        return y, held


def kernels(library: NativeLibrary) -> tuple[Kernel, ...]:
    ops, name = NativeRecurrence(library), f"native-{library.level}"
    return (
        Kernel("causal_conv", name, ops.causal_conv, _convolves, batch_invariant=True),
        Kernel("delta_rule", name, ops.delta_rule, _rules, batch_invariant=True),
        Kernel("channel_delta_rule", name, ops.delta_rule, _rules, batch_invariant=True),
        Kernel("selective_scan", name, ops.selective_scan, _scans, batch_invariant=True),
        Kernel("ssd_scan", name, ops.ssd_scan, _scans, batch_invariant=True),
    )
