"""Layer norms, gates on the outputs of layers, and the small weights of delta rules and hyper-connections in compiled code."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thalweg.backends.cpu.native import NativeLibrary
from thalweg.backends.cpu.native.linear import NAMES, TYPES
from thalweg.hal.op import Kernel

MOST_STREAMS = 16
"""Limit of sparse.inc."""
_L, _P, _F = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float


class _Decays(ctypes.Structure):
    """`Decays` of core.h."""

    _fields_ = (
        *((n, _L) for n in ("type", "tokens", "heads", "dim", "b_stride", "step_stride", "per_task")),
        *((n, _P) for n in ("b", "step", "log_rate", "bias", "decay", "share")), ("floor", _F),
    )  # fmt: skip


class _Hyper(ctypes.Structure):
    """`Hyper` of core.h."""

    _fields_ = (
        *((n, _L) for n in ("tokens", "streams", "iters")),
        *((n, _P) for n in ("logits", "base", "scale", "pre", "post", "comb")), ("eps", _F),
    )  # fmt: skip


def supports_dtype(spec: Mapping[str, Any]) -> str | None:
    return None if spec["dtype"] in NAMES else f"runs bfloat16 and float32, not {spec['dtype']}"


def _few_streams(spec: Mapping[str, Any]) -> str | None:
    return None if spec["streams"] <= MOST_STREAMS else f"runs at most {MOST_STREAMS} streams, not {spec['streams']}"


def _make_rows(t: Tensor) -> tuple[Tensor, int, int, int, int]:
    """(t or a copy, outer, inner, width, stride of the outer): its rows lie at outer * stride + inner * width."""
    if t.dim() == 3 and t.stride(2) == 1 and t.stride(1) == t.shape[2]:
        return t, t.shape[0], t.shape[1], t.shape[2], t.stride(0)
    if t.dim() == 2 and t.stride(1) == 1:
        return t, t.shape[0], 1, t.shape[1], t.stride(0)
    width = t.shape[-1]
    inner = t.shape[-2] if t.dim() > 2 else 1
    return t.contiguous(), t.numel() // (inner * width or 1), inner, width, inner * width


class NativeGates:
    """The kernels' functions, over one open library."""

    def __init__(self, library: NativeLibrary) -> None:
        self._context, self._library = library.context, library
        self._layer_norm, self._sigmoid_gate = library.layer_norm, library.sigmoid_gate
        self._decays, self._hyper = library.decays, library.hyper

    def layer_norm(
        self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float, offset: float = 0.0
    ) -> Tensor:
        x, width = x.contiguous(), x.shape[-1]
        parts = [None if t is None else t.contiguous() for t in (weight, bias)]
        if any(t.dtype != x.dtype or t.shape != (width,) for t in parts if t is not None):
            raise ValueError(f"layer_norm: the weight or bias does not fit {x.dtype} {list(x.shape)}")
        out = torch.empty(x.shape, dtype=x.dtype)
        weight_at, bias_at = (None if t is None else t.data_ptr() for t in parts)
        self._layer_norm(
            self._context, TYPES[x.dtype], x.data_ptr(), x.numel() // width, width, weight_at, bias_at, eps, offset,
            out.data_ptr(),
        )  # fmt: skip
        return out

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Tensor:
        if gate.dtype != x.dtype or gate.shape[:-1] != x.shape[:-1] or gate.shape[-1] not in (1, x.shape[-1]):
            raise ValueError(f"sigmoid_mul: a gate of {gate.dtype} {list(gate.shape)} does not fit {x.dtype} {list(x.shape)}")
        x, outer, inner, width, stride = _make_rows(x)
        gate, _, gate_inner, gate_width, gate_stride = _make_rows(gate)
        out = torch.empty(x.shape, dtype=x.dtype)
        assert inner == gate_inner
        self._sigmoid_gate(
            self._context, TYPES[x.dtype], x.data_ptr(), outer, inner, width, stride, gate.data_ptr(), gate_width, gate_stride,
            out.data_ptr(),
        )  # fmt: skip
        return out

    def delta_gates(self, b: Tensor, a: Tensor, log_rate: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return self._run_decays(b, a, log_rate, bias, 0, 0.0)

    def channel_delta_gates(
        self, b: Tensor, step: Tensor, log_rate: Tensor, bias: Tensor, *, floor: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        return self._run_decays(b, step, log_rate, bias, step.shape[2], floor)

    def _run_decays(
        self, b: Tensor, step: Tensor, log_rate: Tensor, bias: Tensor, dim: int, floor: float
    ) -> tuple[Tensor, Tensor]:
        b = b if b.stride(1) == 1 else b.contiguous()
        inside = step.stride(-1) == 1 and (step.dim() == 2 or step.stride(1) == dim)
        step = step if inside else step.contiguous()
        tokens, heads = b.shape
        rate, bias = log_rate.contiguous(), bias.contiguous()
        fits = rate.numel() == heads and bias.shape == step.shape[1:] and step.shape[:2] == (tokens, heads)
        if not fits or {rate.dtype, bias.dtype} != {torch.float32} or b.dtype != step.dtype:
            raise ValueError(f"delta_gates: {list(step.shape)} does not fit {tokens} tokens of {heads} heads")
        decay, share = torch.empty(step.shape), torch.empty(b.shape)
        held = (b, step, rate, bias, decay, share)
        job = _Decays(TYPES[b.dtype], tokens, heads, dim, b.stride(0), step.stride(0), 0, *(t.data_ptr() for t in held), floor)
        self._keep(job, held)
        self._decays(self._context, ctypes.addressof(job))
        return decay, share

    def hyper_weights(
        self, logits: Tensor, base: Tensor, scale: Tensor, *, streams: int, iters: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        parts = [t.contiguous() for t in (logits, base, scale)]
        tokens, outputs = logits.shape
        if outputs != (2 + streams) * streams or any(t.dtype != torch.float32 for t in parts):
            raise ValueError(f"hyper_weights: {logits.dtype} {list(logits.shape)} are no logits of {streams} streams")
        result = torch.empty(tokens, streams), torch.empty(tokens, streams), torch.empty(tokens, streams, streams)
        job = _Hyper(tokens, streams, iters, *(t.data_ptr() for t in (*parts, *result)), eps)
        self._keep(job, (parts, result))
        self._hyper(self._context, ctypes.addressof(job))
        return result

    def _keep(self, job: ctypes.Structure, held: Any) -> None:
        """While a step is recorded: its replays read the job."""
        if self._library.tape is not None:
            self._library.tape.keep((job, held))


def kernels(library: NativeLibrary) -> tuple[Kernel, ...]:
    ops, name = NativeGates(library), f"native-{library.level}"
    return (
        Kernel("layer_norm", name, ops.layer_norm, supports_dtype, batch_invariant=True),
        Kernel("sigmoid_mul", name, ops.sigmoid_mul, supports_dtype, batch_invariant=True),
        Kernel("delta_gates", name, ops.delta_gates, supports_dtype, batch_invariant=True),
        Kernel("channel_delta_gates", name, ops.channel_delta_gates, supports_dtype, batch_invariant=True),
        Kernel("hyper_weights", name, ops.hyper_weights, _few_streams, batch_invariant=True),
    )
