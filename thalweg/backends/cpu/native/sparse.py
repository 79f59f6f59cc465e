"""Attention to selected keys, entries, blocks of keys and the vectors of a source, and the choice of keys, in compiled code.
Keys are read where they lie."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thalweg.backends.cpu.native import NativeLibrary
from thalweg.backends.cpu.native.gates import supports_dtype
from thalweg.backends.cpu.native.linear import TYPES
from thalweg.hal.op import Kernel

UNIT, MOST_DIM, MOST_QUERY, MOST_INDEX, MOST_RATE = 16, 640, 16384, 256, 256
"""Limits of core.h and latent.inc: values of a key are a multiple of the first, up to the second. Of a choice: values of a
query of all heads, and of one. Tokens of a window."""
_L, _P, _F = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float


class _Source(ctypes.Structure):
    """`Source` of core.h."""

    _fields_ = (
        ("held", _P), ("table", _P),
        *((n, _L) for n in ("columns", "size", "block_stride", "token_stride", "group_stride")),
    )  # fmt: skip


class _Reads(ctypes.Structure):
    """`Reads` of core.h."""

    _fields_ = (
        *((n, _L) for n in ("type", "tokens", "heads", "groups", "parts", "dim", "width", "q_stride", "window", "listed",
                            "block", "whole")),
        ("near", _Source), ("far", _Source), ("values", _Source),
        *((n, _P) for n in ("seq", "positions", "chosen", "sinks", "q", "y")), ("scale", _F),
    )  # fmt: skip


class _KeyChoice(ctypes.Structure):
    """`Choice` of core.h."""

    _fields_ = (
        *((n, _L) for n in ("type", "rows", "heads", "dim", "q_stride", "keys", "block", "local", "top")),
        ("source", _Source), *((n, _P) for n in ("q", "weights", "seq", "positions", "out")),
        *((n, _L) for n in ("first", "chunk", "chunks", "scored")), ("scores", _P), ("room", _P),
    )  # fmt: skip


class _Pooling(ctypes.Structure):
    """`Pooling` of core.h."""

    _fields_ = (
        *((n, _L) for n in ("type", "windows", "width", "rate", "overlaps")), ("source", _Source),
        *((n, _P) for n in ("seq", "ends", "bias", "y")),
    )  # fmt: skip


def _supports_cross(spec: Mapping[str, Any]) -> str | None:
    return "it has no cap of scores" if spec.get("softcap") else _even("heads", "head_dim")(spec)


def _even(name: str, *keys: str) -> Any:
    """`supports` of attention. keys: facts that say how many values keys have, and how many of them are read."""

    def check(spec: Mapping[str, Any]) -> str | None:
        odd = [spec[k] for k in keys if k in spec and (spec[k] % UNIT or spec[k] > MOST_DIM)]
        return f"{name} are multiples of {UNIT} up to {MOST_DIM}, not {odd[0]}" if odd else supports_dtype(spec)

    return check


def _supports_choice(spec: Mapping[str, Any]) -> str | None:
    dim, heads = spec.get("dim", spec.get("size", 1)), spec.get("heads", 1)
    if dim > MOST_INDEX or dim * heads > MOST_QUERY:
        return f"queries have at most {MOST_INDEX} values, and {MOST_QUERY} of all heads, not {dim} of {heads}"
    return supports_dtype(spec)


def _supports_blocks(spec: Mapping[str, Any]) -> str | None:
    dim = spec.get("dim", 1)
    return supports_dtype(spec) if dim <= MOST_INDEX else f"queries have at most {MOST_INDEX} values, not {dim}"


def _supports_pool(spec: Mapping[str, Any]) -> str | None:
    rate = spec.get("rate", 1)
    return supports_dtype(spec) if rate <= MOST_RATE else f"windows have at most {MOST_RATE} tokens, not {rate}"


def _ints(t: Tensor) -> Tensor:
    return t.to(torch.int32).contiguous()


def _heads(q: Tensor) -> Tensor:
    return q if q.stride(2) == 1 and q.stride(1) == q.shape[2] else q.contiguous()


def _locate(held: Tensor, table: Tensor, axis: int = 1, group: int = -1) -> _Source:
    """axis: of held, that of a block's tokens. group: that of groups of heads, -1: there are none."""
    if held.stride(-1) != 1:
        raise ValueError(f"a cache of strides {held.stride()} has no contiguous keys")
    strides = held.stride(0), held.stride(axis), 0 if group < 0 else held.stride(group)
    return _Source(held.data_ptr(), table.data_ptr(), table.shape[1], held.shape[axis], *strides)


class NativeSparse:
    """The kernels' functions, over one open library."""

    def __init__(self, library: NativeLibrary) -> None:
        self._context, self._library = library.context, library
        self._read, self._choose, self._pool = library.read_chosen, library.choose, library.pool

    def _keep(self, job: ctypes.Structure, *held: Any) -> int:
        """Its address. While a step is recorded it lives on, as replays read it."""
        if self._library.tape is not None:
            self._library.tape.keep((job, held))
        return ctypes.addressof(job)

    def _attend(
        self, q: Tensor, width: int, scale: float, source: Tensor, seq: Tensor, held: tuple[Any, ...], **more: Any
    ) -> Tensor:
        q, seq = _heads(q), _ints(seq)
        tokens, heads, dim = q.shape
        if source.dtype != q.dtype or source.shape[-1] != dim or dim % UNIT or width % UNIT or not 0 < width <= dim <= MOST_DIM:
            raise ValueError(f"keys of {source.dtype} {list(source.shape)} do not fit q of {q.dtype} {list(q.shape)}")
        y = torch.empty(tokens, heads, width, dtype=q.dtype)
        job = _Reads(
            type=TYPES[q.dtype], tokens=tokens, heads=heads, dim=dim, width=width, q_stride=q.stride(0), seq=seq.data_ptr(),
            q=q.data_ptr(), y=y.data_ptr(), scale=scale, **{"groups": 1, "block": 1} | more,
        )  # fmt: skip
        if tokens:
            self._read(self._context, self._keep(job, q, seq, y, held))
        return y

    def chosen_attention(
        self, q: Tensor, held: Tensor, table: Tensor, seq: Tensor, chosen: Tensor, *, scale: float, latent: int
    ) -> Tensor:
        table, chosen = _ints(table), _ints(chosen)
        far = _locate(held, table)
        return self._attend(
            q, latent, scale, held, seq, (held, table, chosen), near=far, far=far, listed=chosen.shape[1],
            chosen=chosen.data_ptr(),
        )  # fmt: skip

    def compressed_attention(
        self, q: Tensor, held: Tensor, table: Tensor, seq: Tensor, positions: Tensor, sinks: Tensor, entries: Tensor,
        entry_table: Tensor, chosen: Tensor, *, scale: float, window: int,
    ) -> Tensor:  # fmt: skip
        parts = [_ints(t) for t in (table, entry_table, positions, chosen)]
        sinks = sinks.to(torch.float32).contiguous()
        near, far = _locate(held, parts[0]), _locate(entries, parts[1])
        return self._attend(
            q, q.shape[2], scale, held, seq, (held, entries, parts, sinks), near=near, far=far, window=window,
            listed=chosen.shape[1], positions=parts[2].data_ptr(), chosen=parts[3].data_ptr(), sinks=sinks.data_ptr(),
        )  # fmt: skip

    def block_attention(
        self, q: Tensor, keys: Tensor, values: Tensor, table: Tensor, seq: Tensor, positions: Tensor, chosen: Tensor, *,
        scale: float, size: int,
    ) -> Tensor:  # fmt: skip
        table, positions, chosen = _ints(table), _ints(positions), _ints(chosen)
        far, of_values = (_locate(t, table, group=2) for t in (keys, values))
        return self._attend(
            q, q.shape[2], scale, keys, seq, (keys, values, table, positions, chosen), near=far, far=far, values=of_values,
            groups=keys.shape[2], listed=chosen.shape[2], block=size, positions=positions.data_ptr(), chosen=chosen.data_ptr(),
        )  # fmt: skip

    def attend_recent(
        self, q: Tensor, keys: Tensor, values: Tensor, table: Tensor, seq: Tensor, positions: Tensor, scale: float, window: int
    ) -> Tensor:
        """Attention to the last `window` keys up to each token's own: q [T, H, D], keys and values [blocks, n, G, D], table
        i32[S, B], seq and positions i32[T] -> [T, H, D]."""
        table, positions = _ints(table), _ints(positions)
        near, of_values = (_locate(t, table, group=2) for t in (keys, values))
        return self._attend(
            q, q.shape[2], scale, keys, seq, (keys, values, table, positions), near=near, far=near, values=of_values,
            groups=keys.shape[2], window=window, positions=positions.data_ptr(),
        )  # fmt: skip

    def cross_attention(
        self, q: Tensor, keys: Tensor, values: Tensor, table: Tensor, token_seq: Tensor, seen: Tensor | None = None, *,
        scale: float,
    ) -> Tensor:  # fmt: skip
        table = _ints(table)
        near, of_values = (_locate(t, table, axis=2, group=1) for t in (keys, values))
        last = None if seen is None else _ints(seen - 1)  # of a token; a window as long as the source ends there
        facts = {"whole": 1} if last is None else {"positions": last.data_ptr()}
        return self._attend(
            q, q.shape[2], scale, keys, token_seq, (keys, values, table, last), near=near, far=near, values=of_values,
            groups=keys.shape[1], window=keys.shape[2], **facts,
        )  # fmt: skip

    def _make_choice(
        self, q: Tensor, weights: Tensor | None, held: Tensor, table: Tensor, seq: Tensor, positions: Tensor, top: int,
        size: int = 1, local: int = 0,
    ) -> Tensor:  # fmt: skip
        q, table, seq, positions = _heads(q), _ints(table), _ints(seq), _ints(positions)
        weights = None if weights is None else weights.to(torch.float32).contiguous()
        rows, heads, dim = q.shape
        if held.dtype != q.dtype or held.shape[2] != dim or dim > MOST_INDEX or heads * dim > MOST_QUERY:
            raise ValueError(f"keys of {held.dtype} {list(held.shape)} do not fit q of {q.dtype} {list(q.shape)}")
        out = torch.empty((rows, top) if weights is not None else (rows, heads, top), dtype=torch.int32)
        job = _KeyChoice(
            TYPES[q.dtype], rows, heads, dim, q.stride(0), table.shape[1] * held.shape[1], size, local, top,
            _locate(held, table), q.data_ptr(), None if weights is None else weights.data_ptr(), seq.data_ptr(),
            positions.data_ptr(), out.data_ptr(),
        )  # fmt: skip
        if rows:
            self._choose(self._context, self._keep(job, q, weights, held, table, seq, positions, out))
        return out

    def index_top(
        self, q: Tensor, weights: Tensor, held: Tensor, table: Tensor, seq: Tensor, positions: Tensor, *, top: int
    ) -> Tensor:
        return self._make_choice(q, weights, held, table, seq, positions, top)

    def block_top(
        self, q: Tensor, held: Tensor, table: Tensor, seq: Tensor, positions: Tensor, *, top: int, size: int, local: int
    ) -> Tensor:
        return self._make_choice(q, None, held, table, seq, positions, top, size, local)

    def pool_windows(self, held: Tensor, table: Tensor, seq: Tensor, ends: Tensor, bias: Tensor, *, overlaps: bool) -> Tensor:
        table, seq, ends = _ints(table), _ints(seq), _ints(ends)
        bias = bias.to(torch.float32).contiguous()
        rate, wide = bias.shape
        if held.shape[2] != 2 * wide or rate > MOST_RATE:
            raise ValueError(f"pool_windows: {list(bias.shape)} is no bias of windows in {list(held.shape)}")
        width = wide // 2 if overlaps else wide
        y = torch.empty(seq.shape[0], width, dtype=held.dtype)
        job = _Pooling(
            TYPES[held.dtype], seq.shape[0], width, rate, int(overlaps), _locate(held, table), seq.data_ptr(), ends.data_ptr(),
            bias.data_ptr(), y.data_ptr(),
        )  # fmt: skip
        if seq.shape[0]:
            self._pool(self._context, self._keep(job, held, table, seq, ends, bias, y))
        return y


def kernels(library: NativeLibrary) -> tuple[Kernel, ...]:
    ops, name = NativeSparse(library), f"native-{library.level}"
    return (
        Kernel(
            "chosen_attention",
            name,
            ops.chosen_attention,
            _even("keys and their values", "size", "latent"),
            batch_invariant=True,
        ),
        Kernel("compressed_attention", name, ops.compressed_attention, _even("keys", "size"), batch_invariant=True),
        Kernel("block_attention", name, ops.block_attention, _even("heads", "dim"), batch_invariant=True),
        Kernel("cross_attention", name, ops.cross_attention, _supports_cross, batch_invariant=True),
        Kernel("index_top", name, ops.index_top, _supports_choice, batch_invariant=True),
        Kernel("block_top", name, ops.block_top, _supports_blocks, batch_invariant=True),
        Kernel("pool_windows", name, ops.pool_windows, _supports_pool, batch_invariant=True),
    )
