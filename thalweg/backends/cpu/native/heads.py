"""Products with a separate matrix per head, in compiled code: those of linear layers, all heads in one call."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thalweg.backends.cpu.native import NativeLibrary
from thalweg.backends.cpu.native.linear import NAMES, PANEL, TYPES, NativeLinear, PackedWeight
from thalweg.hal.op import Kernel, Pack
from thalweg.hal.weights import DENSE, QTensor


class NativeHeads:
    """The kernel's function, over one open library. A weight is packed for the side that it is multiplied from."""

    def __init__(self, library: NativeLibrary) -> None:
        self._context, self._linear, self._heads = library.context, NativeLinear(library), library.heads

    def pack(self, w: QTensor, turned: bool) -> PackedWeight:
        """Each head's matrix begins a panel, and rows of zeros fill its last one."""
        if w.format != DENSE:
            raise ValueError(f"head_linear: runs dense weights, not {w.format}")
        each = w.data["weight"].detach().view(w.matrices, -1, w.shape[1])
        each = each.transpose(1, 2) if turned else each
        count, rows, inputs = each.shape
        wide = each.new_zeros(count, -(-rows // PANEL) * PANEL, inputs)
        wide[:, :rows] = each
        flat = wide.flatten(0, 1)
        return self._linear.pack(QTensor(DENSE, (flat.shape[0], inputs), {"weight": flat}, count))

    def run(self, x: Tensor, weight: PackedWeight, *, heads: int, out_features: int, turned: bool = False) -> Tensor:
        """turned: as the weight was packed."""
        x = x if x.stride(2) == 1 else x.contiguous()
        tokens, inputs = x.shape[0], x.shape[2]
        if (
            x.shape[1] != heads
            or weight.dtype != x.dtype
            or weight.shape != (heads * -(-out_features // PANEL) * PANEL, inputs)
        ):
            raise ValueError(f"head_linear: {x.dtype} {list(x.shape)} does not fit {weight.dtype} {list(weight.shape)}")
        out = torch.empty(tokens, heads, out_features, dtype=x.dtype)
        if tokens:
            self._heads(
                self._context, weight.handle, heads, out_features, TYPES[x.dtype], x.data_ptr(), tokens, x.stride(0),
                x.stride(1), out.data_ptr(),
            )  # fmt: skip
        return out


def kernels(library: NativeLibrary) -> tuple[Kernel, ...]:
    """One for each side, as each packs a weight in its own way."""
    result, name = NativeHeads(library), f"native-{library.level}"
    return tuple(
        Kernel(
            "head_linear", name if side else f"{name}-straight", result.run, functools.partial(_takes, turned=side),
            Pack(functools.partial(result.pack, turned=side)), batch_invariant=True,
        )
        for side in (True, False)
    )  # fmt: skip


def _takes(spec: Mapping[str, Any], turned: bool) -> str | None:
    if spec["dtype"] not in NAMES:
        return f"runs bfloat16 and float32, not {spec['dtype']}"
    if spec.get("turned", False) != turned:
        return f"multiplies by matrices that are {'turned' if turned else 'not turned'}"
    return None
