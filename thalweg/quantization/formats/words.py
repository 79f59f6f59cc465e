"""Codes in words of 32 bits, in the layouts of GPTQ, AWQ and their successors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from thalweg.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

WORD = 32
NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Of AWQ's words: where the code of each of their eight outputs lies."""


def words(count: int, bits: int) -> int:
    """Words that so many codes need."""
    return -(-count * bits // WORD)


def stream(packed: Tensor, bits: int, count: int) -> Tensor:
    """int32 [rows, words] -> uint8 [rows, count]: codes are packed from the lowest bit of the first word on. Codes of 3, 5, 6
    and 7 bits may begin in one word and end in the next."""
    import torch

    mask = (1 << bits) - 1
    if WORD % bits == 0:
        wide, places = _narrow(packed.contiguous(), bits)
        codes = torch.stack([wide >> at & mask for at in places], -1) if len(places) > 1 else wide
        return codes.to(torch.uint8).flatten(1)[:, :count].contiguous()
    wide = packed.to(torch.int64) & ((1 << WORD) - 1)
    wide = torch.cat([wide, wide.new_zeros(len(wide), 1)], 1)
    first = torch.arange(count) * bits
    at, shift = first // WORD, first % WORD
    return (((wide[:, at] >> shift) | (wide[:, at + 1] << (WORD - shift))) & mask).to(torch.uint8)


def _narrow(packed: Tensor, bits: int) -> tuple[Tensor, range]:
    """The same codes in bytes, where those are in order and no code crosses one, and where codes begin in each: a quarter of
    the memory to go through."""
    import torch

    if bits <= 8 and sys.byteorder == "little":
        return packed.view(torch.uint8), range(0, 8, bits)
    return packed, range(0, WORD, bits)


def center_codes(codes: Tensor, zeros: Tensor | None, bits: int, layer: str) -> Tensor:
    """uint8 codes of a format that calls itself symmetric -> int8. CheckpointError if its zero points are not in the middle,
    where a file has some."""
    import torch

    middle = 1 << (bits - 1)
    if zeros is not None and bool((zeros != middle).any()):
        raise CheckpointError(
            f"{layer}: its zero points are {zeros.amin():d} to {zeros.amax():d}, and those of a symmetric checkpoint are "
            f"{middle}: quantization_config must say sym (zero_point, symmetric) otherwise, or another checkpoint_format"
        )
    return (codes - middle).view(torch.int8)  # bytes wrap around
