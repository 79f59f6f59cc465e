"""The attention pattern of a class, read from the mask function that transformers calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from thalweg.errors import UnsupportedModelError
from thalweg.models.fallback.attention import PROBED

FULL, BOTH = 0, -1
"""Kinds of masks other than windows (a number of tokens): causal, and bidirectional."""
_MARK = "thalweg_sees"
_FAR = 64
"""Positions tried of masks that name no size."""


def read_mark(mask: Tensor | None) -> int | None:
    """The pattern of a layer's mask. None: the mask was not made here. UnsupportedModelError: the pattern is not supported. It
    is raised here, because some classes make masks that no layer uses."""
    found = getattr(mask, _MARK, None)
    if isinstance(found, UnsupportedModelError):
        raise found
    return None if found is None else int(found)


def _build_mask(
    batch_size: int, q_length: int, kv_length: int, q_offset: int = 0, kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None, attention_mask: Tensor | None = None, local_size: int | None = None,
    device: Any = "meta", **more: Any,
) -> Tensor:  # fmt: skip
    """As transformers calls it for a mask: a mask without values, marked with its pattern."""
    mask = torch.empty(batch_size, 1, q_length, kv_length, dtype=torch.bool, device="meta")
    try:
        meant: int | UnsupportedModelError = read(mask_function, local_size)
    except UnsupportedModelError as e:
        meant = e
    setattr(mask, _MARK, meant)
    return mask


def read(function: Callable[..., Any] | None, size: int | None) -> int:
    """FULL, BOTH, or tokens of a window. size: the class's window. UnsupportedModelError: another pattern."""
    if function is None:
        return FULL
    edge = min(size or 0, 1 << 20)
    rows = sorted({0, 1, 2, _FAR // 2, max(0, edge - 1), edge, edge + 1, 2 * edge, 2 * edge + 1})
    columns = torch.arange(max(_FAR, 2 * edge + 3))
    zero = torch.zeros((), dtype=torch.long)
    seen = torch.stack([
        torch.as_tensor(function(zero, zero, torch.tensor(row), columns)).expand(columns.shape) for row in rows
    ])  # fmt: skip
    at = torch.tensor(rows)[:, None]
    if torch.equal(seen, columns <= at):
        return FULL
    if bool(seen.all()):
        return BOTH
    if size and torch.equal(seen, (columns <= at) & (columns > at - size)):
        return size
    what = f"chunks or blocks of {size}" if size else "a rule of its own"
    raise UnsupportedModelError(f"its mask is neither causal nor a window, but {what}")


def register() -> None:
    if PROBED not in ALL_MASK_ATTENTION_FUNCTIONS.valid_keys():
        AttentionMaskInterface.register(PROBED, _build_mask)
