"""Logit processing that touches only the tokens concerned, where the reference body works on the whole vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.hal import ops
from thalweg.hal.op import Kernel


def _penalties(
    logits: Tensor, history: Tensor, slots: Tensor, lengths: Tensor, prompt_len: Tensor, repetition: Tensor,
    presence: Tensor, frequency: Tensor,
) -> Tensor:  # fmt: skip
    """Gathers the logits of the tokens in each row's history, applies the formulas there, scatters them back. Equal tokens get
    equal values, so it does not matter which is written last. Unknown positions repeat the first."""
    n = max(1, int(lengths.max()))
    position = torch.arange(n, dtype=torch.int32)
    known = position < lengths[:, None]
    tokens = history[slots, :n].clamp(0, logits.shape[1] - 1).long()
    tokens = torch.where(known, tokens, tokens[:, :1])
    output = (known & (position >= prompt_len[:, None])).to(torch.float32)
    times = torch.zeros_like(logits).scatter_add_(1, tokens, output).gather(1, tokens)
    some = (lengths > 0)[:, None]
    scale = torch.where(some, repetition[:, None], 1.0)
    picked = logits.gather(1, tokens)
    changed = torch.where(picked > 0, picked / scale, picked * scale)
    changed = changed - frequency[:, None] * times - presence[:, None] * (times > 0)
    return logits.scatter(1, tokens, changed)


def _byte_table() -> Tensor:
    """bool[256, 8]: the bits of every byte, lowest first."""
    return (torch.arange(256)[:, None] >> torch.arange(8)) & 1 == 0


class TokenMask:
    """Expands the mask a byte at a time through a table."""

    def __init__(self) -> None:
        self._banned = _byte_table()

    def __call__(self, logits: Tensor, mask: Tensor) -> Tensor:
        index = mask.contiguous().view(torch.uint8).flatten().int()
        banned = self._banned.index_select(0, index).view(mask.shape[0], -1)[:, : logits.shape[1]]
        return logits.masked_fill(banned, float("-inf"))


LOGITS = (
    Kernel("penalties", "sparse", _penalties, batch_invariant=True),
    Kernel("bad_words", "torch", ops.bad_words.reference, batch_invariant=True),
    Kernel("logit_bias", "torch", ops.logit_bias.reference, batch_invariant=True),
    Kernel("token_mask", "by-byte", TokenMask(), batch_invariant=True),
)
