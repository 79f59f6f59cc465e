"""From logits to tokens in compiled code: penalties, truncation without a sort, log probabilities and the greedy
choice. The draw computes no noise for tokens that cannot win. One pass per row does everything where a step allows (`draw`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thalweg.backends.cpu.native import NativeLibrary
from thalweg.hal.op import Kernel

MOST = 128
"""Top tokens that `logprobs` keeps in order as it meets them. Torch finds more than these."""


def _few(spec: Mapping[str, Any]) -> str | None:
    return None if spec["k"] <= MOST else f"keeps up to {MOST} tokens in order, not {spec['k']}"


def _rows(name: str, logits: Tensor, *columns: Tensor) -> tuple[int, int]:
    """(rows, vocabulary). ValueError unless every column has a row for each: the compiled side trusts addresses."""
    rows, vocab = logits.shape
    if any(c.shape[0] != rows or not c.is_contiguous() for c in (logits, *columns)) or logits.dtype != torch.float32:
        raise ValueError(f"{name}: logits of {logits.dtype} {[rows, vocab]} and the other arguments do not fit each other")
    return rows, vocab


class NativeSampling:
    """The kernels' functions, over one open library."""

    def __init__(self, library: NativeLibrary) -> None:
        self._context, self._best, self._draw = library.context, library.best, library.draw
        self._logprobs, self._penalties = library.logprobs, library.penalties

    def penalties(
        self, logits: Tensor, history: Tensor, slots: Tensor, lengths: Tensor, prompt_len: Tensor, repetition: Tensor,
        presence: Tensor, frequency: Tensor,
    ) -> Tensor:  # fmt: skip
        logits = logits.contiguous()
        each = (slots, lengths, prompt_len, repetition, presence, frequency)
        rows, vocab = _rows("penalties", logits, *each)
        if not history.is_contiguous():
            raise ValueError("penalties: the history is a view")
        out = torch.empty(logits.shape)
        self._penalties(
            self._context, logits.data_ptr(), rows, vocab, history.data_ptr(), history.shape[1], slots.data_ptr(),
            lengths.data_ptr(), prompt_len.data_ptr(), repetition.data_ptr(), presence.data_ptr(), frequency.data_ptr(),
            out.data_ptr(),
        )  # fmt: skip
        return out

    def truncate(self, logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
        logits = logits.contiguous()
        rows, vocab = _rows("truncate", logits, top_k, top_p, min_p)
        kept = torch.empty(logits.shape)
        self._draw(
            self._context, logits.data_ptr(), rows, vocab, None, 0, top_k.data_ptr(), top_p.data_ptr(), min_p.data_ptr(), None,
            None, kept.data_ptr(), None, None,
        )  # fmt: skip
        return kept

    def sample(self, logits: Tensor, temperature: Tensor, seed: Tensor, position: Tensor, *, random: bool) -> Tensor:
        logits = logits.contiguous()
        rows, vocab = _rows("sample", logits, *((temperature, seed, position) if random else ()))
        tokens = torch.empty(rows, dtype=torch.int32)
        if not random:
            self._best(self._context, logits.data_ptr(), rows, vocab, tokens.data_ptr())
            return tokens
        self._draw(
            self._context, logits.data_ptr(), rows, vocab, temperature.data_ptr(), 0, None, None, None, seed.data_ptr(),
            position.data_ptr(), None, tokens.data_ptr(), None,
        )  # fmt: skip
        return tokens

    def draw(
        self, logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, seed: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits = logits.contiguous()
        rows, vocab = _rows("draw", logits, temperature, top_k, top_p, min_p, seed, position)
        tokens, most = torch.empty(rows, dtype=torch.int32), torch.empty(rows)
        self._draw(
            self._context, logits.data_ptr(), rows, vocab, temperature.data_ptr(), 1, top_k.data_ptr(), top_p.data_ptr(),
            min_p.data_ptr(), seed.data_ptr(), position.data_ptr(), None, tokens.data_ptr(), most.data_ptr(),
        )  # fmt: skip
        return tokens, most

    def logprobs(self, logits: Tensor, tokens: Tensor, *, k: int, normalise: bool) -> tuple[Tensor, Tensor, Tensor]:
        logits = logits.contiguous()
        rows, vocab = _rows("logprobs", logits, tokens)
        k = min(k, vocab)
        ids, values = torch.empty((rows, k + 1), dtype=torch.int32), torch.empty((rows, k + 1))
        ranks = torch.empty(rows, dtype=torch.int32)
        self._logprobs(
            self._context, logits.data_ptr(), tokens.data_ptr(), rows, vocab, k, int(normalise), ids.data_ptr(),
            values.data_ptr(), ranks.data_ptr(),
        )  # fmt: skip
        return ids, values, ranks


def kernels(library: NativeLibrary) -> tuple[Kernel, ...]:
    ops, name = NativeSampling(library), f"native-{library.level}"
    return (
        Kernel("penalties", name, ops.penalties, batch_invariant=True),
        Kernel("truncate", name, ops.truncate, batch_invariant=True),
        Kernel("sample", name, ops.sample, batch_invariant=True),
        Kernel("draw", name, ops.draw, batch_invariant=True),
        Kernel("logprobs", name, ops.logprobs, _few, batch_invariant=True),
    )
