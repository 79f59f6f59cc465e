"""Floats of fewer than 8 bits and power-of-two scales as files store them, and handling of scales shared by formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg.errors import CheckpointError

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the 4-bit float (OCP Microscaling Formats, 1.0)."""
E2M3 = tuple([m / 8 for m in range(8)] + [(1 + m / 8) * 2.0**e for e in range(3) for m in range(8)])
"""Of the 6-bit float with three bits of fraction."""
E3M2 = tuple([m / 16 for m in range(4)] + [(1 + m / 4) * 2.0 ** (e - 3) for e in range(1, 8) for m in range(4)])
"""Of the 6-bit float with two."""


def float4(packed: Any) -> Any:
    """Bytes [rows, n / 2], of two codes the first in the lower half -> their values, float8_e4m3fn [rows, n]."""
    import torch

    raw = packed.view(torch.uint8)
    return to_float8(torch.stack([raw & 15, raw >> 4], -1).flatten(-2), E2M1)


def float6(packed: Any, magnitudes: Sequence[float]) -> Any:
    """Bytes [rows, 3 n / 4] -> float8_e4m3fn [rows, n]: four codes lie in three bytes, the first in the lowest bits."""
    import torch

    first, second, third = packed.unflatten(-1, (-1, 3)).to(torch.int32).unbind(-1)
    word = first | second << 8 | third << 16
    return to_float8(torch.stack([word >> shift & 63 for shift in (0, 6, 12, 18)], -1).flatten(-2), magnitudes)


def to_float8(codes: Any, magnitudes: Sequence[float]) -> Any:
    """Codes of a small float, with the sign in the highest bit -> the same values as float8_e4m3fn, which has all of them."""
    import torch

    table = torch.tensor([*magnitudes, *(-x for x in magnitudes)]).to(torch.float8_e4m3fn)
    return table.view(torch.uint8)[codes.to(torch.int64)].view(torch.float8_e4m3fn)


def wide(scales: Any, layer: str) -> Any:
    """Scales as files store them -> float32. Bytes and float8_e8m0fnu are exponents: 2**(b - 127). CheckpointError for a NaN
    scale."""
    import torch

    if scales.dtype in (torch.uint8, torch.float8_e8m0fnu):
        bits = scales.view(torch.uint8).to(torch.int32)
        if bool((bits == 255).any()):
            raise CheckpointError(f"{layer}: a scale is NaN (its exponent's byte is 255): the file is damaged")
        result: Any = torch.where(bits == 0, 1 << 22, bits << 23).view(torch.float32)  # 2**-127 is subnormal
        return result
    return scales.to(torch.float32)


def by_rows(blocks: Any, size: int, rows: int) -> Any:
    """Scales [rows / size, groups] of blocks -> float32 [rows, groups]: every row of a block has the block's. It costs 4 bytes
    per group, and rows can be joined and divided anywhere."""
    return blocks.float().repeat_interleave(size, 0)[:rows].contiguous()


def per_row(scales: Any, rows: int) -> Any:
    """A scale of the whole tensor ([], [1] or [1, 1]), or one of each row ([rows] or [rows, 1]) -> [rows, 1]."""
    return scales.reshape(-1, 1).expand(rows, 1).contiguous()


def whole(rows: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of a scale per row, or one of the whole tensor."""
    return (rows, 1), (rows,), (), (1,), (1, 1)
