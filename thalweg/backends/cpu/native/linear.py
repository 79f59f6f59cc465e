"""Linear layers in compiled code, from weights packed once: dense, int8 and int4, by inputs as they are or rounded to int8.

One kernel for every number of rows, each output summed over the inputs in order: a row has the same bits in any batch.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.backends.cpu.native import PORTABLE, Library
from thalweg.hal.op import Kernel, Pack
from thalweg.hal.weights import DENSE as PLAIN
from thalweg.hal.weights import QTensor, WeightFormat

TYPES = {torch.bfloat16: 0, torch.float32: 1}
NAMES = ("bfloat16", "float32")
DENSE, INT8, INT4, INT8_ROWS, INT4_GROUPS = range(5)
PANEL = 64
"""Outputs of a panel. It and the forms above are those of core.h."""


class Packed:
    """A weight in the library's layout, in memory of its own (huge pages where the system has them), freed with this object."""

    __slots__ = ("__weakref__", "bytes", "dtype", "handle", "shape")

    def __init__(self, library: Library, handle: int, shape: tuple[int, int], dtype: torch.dtype | None) -> None:
        """dtype: of a dense weight. None = takes either."""
        self.handle, self.shape, self.dtype, self.bytes = handle, shape, dtype, int(library.bytes(handle))
        weakref.finalize(self, library.free, handle)


def form_of(format: WeightFormat) -> int | str:
    """How the library holds this format, or why it does not."""
    if format.kind == "dense":
        return DENSE
    if format.kind != "int" or format.bits not in (4, 8):
        return f"runs dense, int8 and int4 weights, not {format}"
    if format.group == -1 or format.group % 2:
        return f"scales belong to whole rows or to an even number of inputs, not {format}"
    if not format.act:
        return INT8 if format.bits == 8 else INT4
    if format.act == "int8" and format.bits == 8 and format.group == 0 and format.symmetric:
        return INT8_ROWS
    if format.act == "int8_per_group" and format.bits == 4 and format.group % 4 == 0:
        return INT4_GROUPS
    return f"multiplies int8 by int8 with one scale per row, and int4 by int8 with groups of a multiple of 4, not {format}"


class Linear:
    """The kernel's functions, over one open library."""

    def __init__(self, library: Library) -> None:
        self._library, self._context = library, library.context
        self._linear, self._largest, self._gather = library.linear, library.largest, library.gather

    def supports(self, spec: Mapping[str, Any]) -> str | None:
        if spec["dtype"] not in NAMES:
            return f"runs bfloat16 and float32, not {spec['dtype']}"
        form = form_of(spec["weight"])
        return form if isinstance(form, str) else None

    def gains(self, spec: Mapping[str, Any]) -> str | None:
        slow = self._library.level == PORTABLE and form_of(spec["weight"]) == INT4_GROUPS
        return "portable code multiplies float32 faster than integers" if slow else None

    def pack(self, w: QTensor) -> Packed:
        """A dense weight is packed for inputs of its own dtype, a quantised one for either."""
        form = form_of(w.format)
        if isinstance(form, str):
            raise ValueError(form)
        codes = w.data["weight" if form == DENSE else "codes"].detach().contiguous()
        scales = w.data["scales"].to(torch.float32).contiguous() if form != DENSE else None
        zeros = w.data["zeros"].contiguous() if "zeros" in w.data else None
        shifts = None
        if w.format.mins:
            codes, scales, shifts = _shifts(w)
        dtype = codes.dtype if form == DENSE else None
        parts = [(codes.data_ptr(), w.shape[0])]
        more = [None if a is None else a.data_ptr() for a in (scales, zeros, shifts)]
        return self._packed(form, dtype, parts, w.shape, w.format.group, *more)

    def pack_mapped(self, parts: Sequence[np.ndarray], format: WeightFormat) -> Packed | None:
        """A dense weight straight from where it lies, which may be a mapped file. It is rounded on the way, a panel
        at a time, where the format is one of codes."""
        form = form_of(format)
        if isinstance(form, str) or format.group % 4 or format.mins:
            return None
        parts = [np.require(p, requirements=["C", "ALIGNED"]) for p in parts]
        dtype = torch.bfloat16 if parts[0].dtype == np.uint16 else torch.float32
        shape, where = (sum(map(len, parts)), parts[0].shape[1]), [(p.ctypes.data, len(p)) for p in parts]
        return self._packed(form, dtype, where, shape, format.group, shifted=not format.symmetric)

    def _packed(
        self,
        form: int,
        dtype: torch.dtype | None,
        parts: Sequence[tuple[int, int]],
        shape: tuple[int, int],
        group: int = 0,
        scales: int | None = None,
        zeros: int | None = None,
        shifts: int | None = None,
        *,
        shifted: bool = False,
    ) -> Packed:
        """parts: address and rows. dtype: of a dense weight, or of values to be rounded. shifted: with zero points."""
        n, k = shape
        addresses, rows = zip(*parts, strict=True)
        handle = self._library.pack(
            self._context, form, 0 if dtype is None else TYPES[dtype], (ctypes.c_void_p * len(parts))(*addresses),
            (ctypes.c_int64 * len(parts))(*rows), n, k, group or k, scales, zeros, shifts,
            int(shifted or zeros is not None or shifts is not None),
        )  # fmt: skip
        if not handle:
            raise MemoryError(f"no memory for a packed weight of {n} x {k}")
        return Packed(self._library, handle, shape, dtype if form == DENSE else None)

    def has_rows(self, spec: Mapping[str, Any]) -> str | None:
        if not spec.get("tied") or spec.get("weight", PLAIN) != PLAIN:
            return "reads rows out of the packed output matrix, and this table is none"
        return None if spec["dtype"] in NAMES else f"holds bfloat16 and float32, not {spec['dtype']}"

    def rows(self, tokens: Tensor, weight: Packed, *, group: int = 0, dtype: str = "") -> Tensor:
        """Of a dense weight, as they were before it was packed."""
        if weight.dtype is None or tokens.dtype != torch.int32:
            raise ValueError(f"embed: {tokens.dtype} does not choose among rows of {weight.dtype}")
        tokens = tokens.contiguous()
        out = torch.empty((*tokens.shape, weight.shape[1]), dtype=weight.dtype)
        self._gather(self._context, weight.handle, tokens.data_ptr(), tokens.numel(), out.data_ptr())
        return out

    def run(self, x: Tensor, weight: Packed, bias: Tensor | None = None, *, act: str = "", group: int = 0) -> Tensor:
        """act, group: what the packed weight was made for already."""
        x = _fit(x, weight, bias)
        out = torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype)
        self._linear(
            self._context, weight.handle, TYPES[x.dtype], x.data_ptr(), x.numel() // x.shape[-1],
            None if bias is None else bias.data_ptr(), out.data_ptr(),
        )  # fmt: skip
        return out

    def argmax(
        self, x: Tensor, weight: Packed, bias: Tensor | None = None, *, act: str = "", group: int = 0
    ) -> tuple[Tensor, Tensor]:
        x = _fit(x, weight, bias)
        rows = x.numel() // x.shape[-1]
        room = torch.empty(rows, -(-weight.shape[0] // PANEL), 2, dtype=torch.float32)
        at, most = torch.empty(x.shape[:-1], dtype=torch.int32), torch.empty(x.shape[:-1], dtype=torch.float32)
        self._largest(
            self._context, weight.handle, TYPES[x.dtype], x.data_ptr(), rows,
            None if bias is None else bias.data_ptr(), room.data_ptr(), at.data_ptr(), most.data_ptr(),
        )  # fmt: skip
        return at, most


def _shifts(w: QTensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales, and minima as zero points that need not be whole: code * scale - min = (code - min / scale) * scale.
    Where a scale is 0 its codes count for nothing: they become 0, and the scale the minimum."""
    codes, scales, mins = w.data["codes"].detach(), w.data["scales"].to(torch.float32), w.data["mins"]
    none = scales == 0
    if none.any():
        codes = codes.masked_fill(none.repeat_interleave(w.format.group or codes.shape[1], 1)[:, : codes.shape[1]], 0)
        scales = torch.where(none, mins, scales)
    shifts = torch.where(scales == 0, torch.zeros_like(mins), mins / scales)
    return codes.contiguous(), scales.contiguous(), shifts.contiguous()


def _fit(x: Tensor, weight: Packed, bias: Tensor | None) -> Tensor:
    n, k = weight.shape
    if (
        x.shape[-1] != k
        or weight.dtype not in (None, x.dtype)
        or (bias is not None and (bias.dtype != x.dtype or len(bias) != n))
    ):
        raise ValueError(f"linear: {x.dtype} {list(x.shape)} does not fit a weight of {weight.dtype} {[n, k]}")
    return x.contiguous()


def kernels(library: Library) -> tuple[Kernel, ...]:
    linear, name = Linear(library), f"native-{library.level}"
    pack = Pack(linear.pack, linear.pack_mapped)
    return (
        Kernel("linear", name, linear.run, linear.supports, pack, batch_invariant=True, gains=linear.gains),
        Kernel("embed", name, linear.rows, linear.has_rows, pack, batch_invariant=True),
        Kernel("linear_argmax", name, linear.argmax, linear.supports, pack, batch_invariant=True),
    )
