"""Linear layers in compiled code, from weights packed once: dense, integers, floats and tables of 8 and 4 bits, by inputs as
they are or rounded to 8 bits.

One kernel for every number of rows, each output summed over the inputs in order: a row has the same bits in any batch.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from thalweg.backends.cpu.native import PORTABLE, QUADS, NativeLibrary, of_rows
from thalweg.hal.op import Kernel, Pack
from thalweg.hal.ops.quantise import E2M1, FITTED
from thalweg.hal.weights import DENSE as PLAIN
from thalweg.hal.weights import QTensor, WeightFormat

TYPES = {torch.bfloat16: 0, torch.float32: 1}
NAMES = ("bfloat16", "float32")
DENSE, INT8, INT4, INT8_ROWS, INT4_GROUPS, TABLE, FLOAT8, INT6, INT8_GROUPS = range(9)
FLOAT_ACTS = {"": 0, "float8_e4m3fn": 1, "float8_e4m3fn_per_group": 2, "float8_e4m3fn_static": 3}
"""Names of `WeightFormat.act` -> the rounding of inputs before a product of floats."""
KEEP = "int8_keep4"
ACTS = {**FLOAT_ACTS, KEEP: 4}
"""Of `Act` in core.h."""
PANEL = 64
"""Outputs of a panel. It and the numbers above are those of core.h."""
BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
"""GGUF's types that the library unpacks itself, in the order of blocks.h."""
SIX = ("Q5_0", "Q5_1", "Q5_K", "Q6_K")
"""Of these the codes fit in six bits."""
LEVELS = (*E2M1, *(-x for x in E2M1))
"""Values of the 4-bit float, by its bits."""


class PackedWeight:
    """A weight in the library's layout, in separate memory (huge pages where the system has them), freed with this object."""

    __slots__ = ("__weakref__", "bytes", "dtype", "handle", "lies", "shape")

    def __init__(
        self,
        library: NativeLibrary,
        handle: int,
        shape: tuple[int, int],
        dtype: torch.dtype | None,
        lies: np.ndarray | None = None,
    ) -> None:
        """dtype: of a dense weight. None = accepts either. lies: the memory that holds it, if not the library's own."""
        self.handle, self.shape, self.dtype, self.bytes = handle, shape, dtype, int(library.bytes(handle))
        self.lies = lies
        library.shapes[handle] = shape
        weakref.finalize(self, _free, library, handle)


def _free(library: NativeLibrary, handle: int) -> None:
    library.shapes.pop(handle, None)
    library.free(handle)


def form_of(format: WeightFormat) -> int | str:
    """How the library holds this format, or why it does not."""
    if format.kind == "dense":
        return DENSE
    if format.group % 2 and format.group != -1:
        return f"scales belong to whole rows or to an even number of inputs, not {format}"
    if format.kind == "int" and format.act.startswith("int8"):
        return _integers(format)
    if format.act not in FLOAT_ACTS:
        return f"rounds inputs to int8 or float8_e4m3fn, not {format.act}"
    if format.kind == "int" and format.bits in (4, 8):
        return INT8 if format.bits == 8 else INT4
    if format.kind == "table" and format.bits == 4 and len(format.levels) == 16:
        return TABLE
    if format.kind == "float" and format.bits in (4, 8):
        return TABLE if format.bits == 4 else FLOAT8
    return f"runs dense weights, integers and floats of 4 and 8 bits, and tables of 16 levels, not {format}"


def _integers(format: WeightFormat) -> int | str:
    """The same for inputs rounded to integers."""
    if format.act in ("int8", KEEP) and format.bits == 8 and format.group == 0 and format.symmetric:
        return INT8_ROWS
    if format.act == "int8_per_group" and format.bits in (4, 8) and format.group >= 0 and format.group % 4 == 0:
        return INT4_GROUPS if format.bits == 4 else INT8_GROUPS
    return f"multiplies int8 and int4 by int8 with one scale per row, or with groups of a multiple of 4, not {format}"


@dataclass(frozen=True, slots=True)
class PackInputs:
    """The arguments of `thalweg_pack`, from tensors that this object keeps alive."""

    codes: Tensor
    scales: Tensor | None = None
    zeros: Tensor | None = None
    mins: Tensor | None = None
    shifted: bool = False
    levels: Tensor | None = None
    outer: Tensor | None = None
    input_scale: float = 0.0


class NativeLinear:
    """The kernel's functions, over one open library."""

    def __init__(self, library: NativeLibrary) -> None:
        self._library, self._context = library, library.context
        self._linear, self._largest, self._gather = library.linear, library.largest, library.gather

    def supports(self, spec: Mapping[str, Any]) -> str | None:
        if spec["dtype"] not in NAMES:
            return f"runs bfloat16 and float32, not {spec['dtype']}"
        form = self._form(spec["weight"], spec["in_features"])
        return form if isinstance(form, str) else None

    def _form(self, format: WeightFormat, inputs: int) -> int | str:
        """`form_of`, or the reason why this instruction set has no product for it."""
        form = form_of(format)
        if form == INT8_GROUPS and not self._library.quads(self._context, form, inputs, format.group or inputs):
            return f"has no product of four bytes with four, or groups too large for it: {format}"
        return form

    def gains(self, spec: Mapping[str, Any]) -> str | None:
        slow = self._library.level == PORTABLE and (form_of(spec["weight"]) == INT4_GROUPS or spec["weight"].act == KEEP)
        if slow:
            return "portable code multiplies float32 faster than integers"
        if spec["weight"].kind == "float" and spec["weight"].act:
            return "rounded inputs are multiplied as they were, in their dtype"
        return None

    def pack(self, w: QTensor) -> PackedWeight:
        """A dense weight is packed for inputs of the same dtype, a quantised one for either."""
        form = self._form(w.format, w.shape[1])
        if isinstance(form, str):
            raise ValueError(form)
        if form == DENSE:
            weight = w.data["weight"].detach().contiguous()
            return self._pack(form, weight.dtype, [(weight.data_ptr(), w.shape[0])], w.format, w.shape)
        form = INT6 if form == INT8 and _six_bits(w) and self._library.level not in QUADS else form
        quads = bool(self._library.quads(self._context, form, w.shape[1], max(w.format.group, 0) or w.shape[1]))
        result = _parts(w, form, quads)
        return self._pack(form, None, [(result.codes.data_ptr(), w.shape[0])], w.format, w.shape, result)

    def pack_mapped(self, parts: Sequence[np.ndarray], format: WeightFormat) -> PackedWeight | None:
        """A dense weight straight from where it lies, which may be a mapped file. It is rounded on the way, a panel
        at a time, where the format is one of codes."""
        form = self._form(format, parts[0].shape[1])
        fits = (
            format.sixteenths and form == INT4_GROUPS and format.group in FITTED and _is_whole(parts[0].shape[1], format.group)
        )
        if isinstance(form, str) or form == TABLE or format.group % 4 or format.group < 0 or format.own_scale:
            return None
        if (format.mins and not fits) or format.code_bits:
            return None
        parts = [np.require(p, requirements=["C", "ALIGNED"]) for p in parts]
        dtype = torch.bfloat16 if parts[0].dtype == np.uint16 else torch.float32
        shape, where = (sum(map(len, parts)), parts[0].shape[1]), [(p.ctypes.data, len(p)) for p in parts]
        kept = self._library.kept
        if kept is None:
            return self._pack(form, dtype, where, format, shape, shifted=_shift(format))
        how = (form, dtype, format, *["compressed"] * self._library.compresses)
        name = kept.name(parts, *how)
        found = self._adopt(form, dtype, format, shape, kept.map(name))
        if found is None:
            found = self._pack(form, dtype, where, format, shape, shifted=_shift(format))
            kept.write(name, self._library.memory(found.handle), found.bytes)
        return found

    def _adopt(
        self, form: int, dtype: torch.dtype, format: WeightFormat, shape: tuple[int, int], lies: np.ndarray | None
    ) -> PackedWeight | None:
        """A weight packed so before, from the bytes `lies`, u8[bytes]. None without them, or with another number of bytes."""
        if lies is None:
            return None
        handle = self._library.adopt(
            self._context, form, TYPES[dtype], *shape, max(format.group, 0) or shape[1], _shift(format),
            ACTS.get(format.act, 0), lies.ctypes.data, lies.nbytes,
        )  # fmt: skip
        return PackedWeight(self._library, handle, shape, dtype if form == DENSE else None, lies) if handle else None

    def pack_blocks(self, parts: Sequence[np.ndarray], kind: str, inputs: int, format: WeightFormat) -> PackedWeight | None:
        """Rows of a GGUF file's blocks, [rows, bytes of so many inputs], from where they lie."""
        form = form_of(format)
        if kind not in BLOCKS or format.act or isinstance(form, str) or form not in (INT8, INT4):
            return None
        form = INT6 if form == INT8 and kind in SIX and self._library.level not in QUADS else form
        if self._library.quads(self._context, form, inputs, format.group):
            return None
        rows = sum(map(len, parts))
        parts = [np.require(p, requirements=["C"]) for p in parts]
        handle = self._library.pack_blocks(
            self._context, form, BLOCKS.index(kind), (ctypes.c_void_p * len(parts))(*(p.ctypes.data for p in parts)),
            (ctypes.c_int64 * len(parts))(*map(len, parts)), rows, inputs,
        )  # fmt: skip
        return self._wrap_handle(handle, (rows, inputs))

    def _pack(
        self,
        form: int,
        dtype: torch.dtype | None,
        where: Sequence[tuple[int, int]],
        format: WeightFormat,
        shape: tuple[int, int],
        result: PackInputs | None = None,
        *,
        shifted: int = 0,
    ) -> PackedWeight:
        """dtype: of a dense weight, or of values to be rounded. where: address and rows of each part. shifted: by `_shift`."""
        (n, k), (addresses, rows) = shape, zip(*where, strict=True)
        more: list[int | None] = [None] * 5
        if result is not None:
            tensors = (result.scales, result.zeros, result.mins, result.levels, result.outer)
            more = [None if a is None else a.data_ptr() for a in tensors]
        scales, zeros, mins, levels, outer = more
        handle = self._library.pack(
            self._context, form, 0 if dtype is None else TYPES[dtype], (ctypes.c_void_p * len(where))(*addresses),
            (ctypes.c_int64 * len(where))(*rows), n, k, max(format.group, 0) or k, scales, zeros, mins,
            int(result.shifted if result else shifted), levels, outer, ACTS.get(format.act, 0),
            result.input_scale if result else 0.0,
        )  # fmt: skip
        return self._wrap_handle(handle, shape, dtype if form == DENSE else None)

    def _wrap_handle(self, handle: int, shape: tuple[int, int], dtype: torch.dtype | None = None) -> PackedWeight:
        if not handle:
            raise MemoryError(f"no memory for a packed weight of {shape[0]} x {shape[1]}")
        return PackedWeight(self._library, handle, shape, dtype)

    def has_rows(self, spec: Mapping[str, Any]) -> str | None:
        if not spec.get("tied"):
            return "reads rows out of the packed output matrix, and this table is none"
        if spec["dtype"] not in NAMES:
            return f"holds bfloat16 and float32, not {spec['dtype']}"
        format = spec.get("weight", PLAIN)
        if format == PLAIN:
            return None
        if not of_rows(format) or self._library.quads(
            self._context, INT8 if format.bits == 8 else INT4, spec["size"], format.group
        ):
            return f"reads rows of integers of 4 and 8 bits that no product takes in quads, not {format}"
        return None

    def rows(self, tokens: Tensor, weight: PackedWeight, *, group: int = 0, dtype: str = "") -> Tensor:
        """Of a dense weight, as they were before it was packed. Of codes, decoded to dtype."""
        kind = weight.dtype or getattr(torch, dtype)
        if tokens.dtype != torch.int32 or kind not in TYPES:
            raise ValueError(f"embed: {tokens.dtype} does not choose among rows of {kind}")
        tokens = tokens.contiguous()
        out = torch.empty((*tokens.shape, weight.shape[1]), dtype=kind)
        self._gather(self._context, weight.handle, TYPES[kind], tokens.data_ptr(), tokens.numel(), out.data_ptr())
        return out

    def run(self, x: Tensor, weight: PackedWeight, bias: Tensor | None = None, *, act: str = "", group: int = 0) -> Tensor:
        """act, group: those that the weight was packed for."""
        x = _fit(x, weight, bias)
        out = torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype)
        self._linear(
            self._context, weight.handle, TYPES[x.dtype], x.data_ptr(), x.numel() // x.shape[-1],
            None if bias is None else bias.data_ptr(), out.data_ptr(),
        )  # fmt: skip
        return out

    def argmax(
        self, x: Tensor, weight: PackedWeight, bias: Tensor | None = None, *, act: str = "", group: int = 0
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


def _is_whole(inputs: int, group: int) -> bool:
    """Are there several groups, and none is short?"""
    return inputs > group and inputs % group == 0


def _shift(format: WeightFormat) -> int:
    """How the library rounds: 0 without zero points, 1 with them, 2 with multiples of a 16th."""
    return 0 if format.symmetric else 2 if format.sixteenths else 1


def _parts(w: QTensor, form: int, quads: bool) -> PackInputs:
    """Canonical data in the library's form. quads: minimums become zero points."""
    codes, rows = w.data["codes"].detach(), w.shape[0]
    scales = w.data["scales"].to(torch.float32)
    if w.format.group == -1:
        scales = scales.expand(rows, 1)
    zeros, mins, shifted = w.data.get("zeros"), w.data.get("mins"), not w.format.symmetric
    levels = None
    if form == TABLE:
        levels = torch.tensor(LEVELS) if w.format.kind == "float" else w.data["levels"].reshape(-1).to(torch.float32)
        codes = _bits_of_e2m1(codes) if w.format.kind == "float" else codes
    elif form == FLOAT8:
        codes, scales = _without_nan(codes, scales, w.format.group)
    elif mins is not None and quads:
        codes, scales, mins = _shifts(w)
    elif mins is not None:
        mins = mins.to(torch.float32)
        shifted = bool(codes.numel() and codes.amax() > 127)
        mins = mins - 128 * scales if shifted else mins
    static = w.data.get("input_scale")
    outer = w.data["scale"].to(torch.float32).expand(rows, 1).contiguous() if "scale" in w.data else None
    return PackInputs(
        codes.contiguous(), scales.contiguous(), None if zeros is None else zeros.contiguous(),
        None if mins is None else mins.contiguous(), shifted, levels, outer,
        float(static) if static is not None and w.format.own_scale else 0.0,
    )  # fmt: skip


def _six_bits(w: QTensor) -> bool:
    """Do six bits hold every code? They do for GGUF's Q6_K and Q5 types, which are held as int8."""
    codes, unsigned = w.data["codes"], w.format.mins
    if not codes.numel() or not (unsigned or w.format.symmetric):
        return False
    least, most = (int(x) for x in codes.aminmax())
    return most < 64 if unsigned else least >= -32 and most < 32


def _bits_of_e2m1(codes: Tensor) -> Tensor:
    """4-bit floats, held as the float8_e4m3fn of their value, as their bits."""
    every = torch.arange(256, dtype=torch.uint8)
    values = every.view(torch.float8_e4m3fn).to(torch.float32)
    bits = torch.bucketize(values.abs().nan_to_num(), torch.tensor(E2M1)).clamp(max=7) + 8 * (every >> 7)
    return bits.to(torch.uint8)[codes.view(torch.uint8).to(torch.int32)]


def _without_nan(codes: Tensor, scales: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """A NaN code makes its scale NaN: the product is the same, and kernels need not look."""
    if codes.dtype != torch.float8_e4m3fn:
        raise ValueError(f"linear: 8-bit floats are float8_e4m3fn, not {codes.dtype}")
    lost = (codes.view(torch.uint8) & 127) == 127
    if lost.any():
        size = group if group > 0 else codes.shape[1]
        lost = F.pad(lost, (0, -codes.shape[1] % size)).reshape(len(codes), -1, size).any(-1)
        scales = scales.masked_fill(lost, float("nan"))
    return codes, scales


def _shifts(w: QTensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales, and minimums as zero points that need not be whole: code * scale - min = (code - min / scale) * scale.
    Where a scale is 0 its codes count for nothing: they become 0, and the scale the minimum."""
    codes, scales, mins = w.data["codes"].detach(), w.data["scales"].to(torch.float32), w.data["mins"]
    none = scales == 0
    if none.any():
        codes = codes.masked_fill(none.repeat_interleave(w.format.group or codes.shape[1], 1)[:, : codes.shape[1]], 0)
        scales = torch.where(none, mins, scales)
    return codes, scales, torch.where(scales == 0, torch.zeros_like(mins), mins / scales)


def _fit(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    n, k = weight.shape
    if (
        x.shape[-1] != k
        or weight.dtype not in (None, x.dtype)
        or (bias is not None and (bias.dtype != x.dtype or len(bias) != n))
    ):
        raise ValueError(f"linear: {x.dtype} {list(x.shape)} does not fit a weight of {weight.dtype} {[n, k]}")
    return x.contiguous()


def kernels(library: NativeLibrary) -> tuple[Kernel, ...]:
    linear, name = NativeLinear(library), f"native-{library.level}"
    pack = Pack(linear.pack, linear.pack_mapped, linear.pack_blocks)
    return (
        Kernel("linear", name, linear.run, linear.supports, pack, batch_invariant=True, gains=linear.gains),
        Kernel("embed", name, linear.rows, linear.has_rows, pack, batch_invariant=True),
        Kernel("linear_argmax", name, linear.argmax, linear.supports, pack, batch_invariant=True),
    )
