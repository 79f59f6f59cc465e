"""Low-rank adapters in compiled code: one call for all rows of a linear layer, whatever adapters they have."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from thalweg.backends.cpu.native import NativeLibrary
from thalweg.backends.cpu.native.linear import NAMES, TYPES
from thalweg.hal.op import Kernel


class NativeLora:
    """The kernels' functions, over one open library."""

    def __init__(self, library: NativeLibrary) -> None:
        self._context, self._rows, self._add = library.context, library.lora_rows, library.lora_add
        self._rescale = library.lora_rescale
        self._bounds: dict[tuple[int, ...], Any] = {}
        """The first output of each part, and their number, by the outputs of parts. Recorded steps hold the addresses."""

    def rows(self, slot: Tensor, seq: Tensor, read: Tensor | None = None, *, count: int) -> tuple[Tensor, Tensor, Tensor]:
        n = len(seq if read is None else read)
        if any(t is not None and t.dtype != torch.int32 for t in (slot, seq, read)):
            raise ValueError("lora_rows: slots, sequences and rows are int32")
        slot, seq, read = slot.contiguous(), seq.contiguous(), None if read is None else read.contiguous()
        slots, order, starts = (torch.empty(size, dtype=torch.int32) for size in (n, n, count + 1))
        self._rows(
            self._context, slot.data_ptr(), seq.data_ptr(), None if read is None else read.data_ptr(), n, count,
            slots.data_ptr(), order.data_ptr(), starts.data_ptr(),
        )  # fmt: skip
        return slots, order, starts

    def add(
        self, y: Tensor, x: Tensor, slots: Tensor, order: Tensor, starts: Tensor, a: Tensor, b: Tensor, ranks: Tensor, *,
        rows: tuple[int, ...],
    ) -> Tensor:  # fmt: skip
        """Returns y, with the adapters added in its memory where it is contiguous."""
        y, x, parts, (count, rank, outputs) = y.contiguous(), x.contiguous(), len(rows), b.shape
        inputs = x.shape[-1]
        if (
            not y.dtype == x.dtype == a.dtype == b.dtype
            or y.shape != (*x.shape[:-1], outputs)
            or sum(rows) != outputs
            or a.shape != (count, parts * rank, inputs)
            or ranks.shape != (count, parts)
            or order.shape != (x.numel() // inputs,)
            or starts.shape != (count + 1,)
        ):
            raise ValueError(
                f"lora_add: {y.dtype} {list(y.shape)} and inputs {x.dtype} {list(x.shape)} do not fit adapters of {a.dtype} "
                f"{list(a.shape)} and {list(b.shape)}, in {parts} parts of {sum(rows)} outputs"
            )
        bounds = self._bounds.get(rows)
        if bounds is None:
            bounds = self._bounds[rows] = (ctypes.c_int64 * (parts + 1))(0, *accumulate(rows))
        self._add(
            self._context, TYPES[y.dtype], y.data_ptr(), x.data_ptr(), inputs, outputs, order.data_ptr(), starts.data_ptr(),
            count, a.data_ptr(), b.data_ptr(), ranks.data_ptr(), ctypes.addressof(bounds), parts, rank,
        )  # fmt: skip
        return y

    def rescale(self, y: Tensor, slots: Tensor, vectors: Tensor) -> Tensor:
        """Returns y, changed in its memory where it is contiguous."""
        y, slots = y.contiguous(), slots.contiguous()
        rows, width = y.shape
        if slots.shape != (rows,) or slots.dtype != torch.int32 or vectors.shape[1:] != (2, width):
            raise ValueError(f"lora_rescale: vectors of {list(vectors.shape)} do not fit {list(slots.shape)} rows of {width}")
        if vectors.dtype != torch.float32 or not vectors.is_contiguous():
            raise ValueError(f"lora_rescale: vectors are contiguous float32, not {vectors.dtype}")
        if rows:
            self._rescale(
                self._context, TYPES[y.dtype], y.data_ptr(), slots.data_ptr(), vectors.data_ptr(), rows, width
            )  # fmt: skip
        return y


def _supports(spec: Mapping[str, Any]) -> str | None:
    return None if spec["dtype"] in NAMES else f"runs bfloat16 and float32, not {spec['dtype']}"


def kernels(library: NativeLibrary) -> tuple[Kernel, ...]:
    result, name = NativeLora(library), f"native-{library.level}"
    return (
        Kernel("lora_rows", name, result.rows, batch_invariant=True),
        Kernel("lora_add", name, result.add, _supports, batch_invariant=True),
        Kernel("lora_rescale", name, result.rescale, _supports, batch_invariant=True),
    )
