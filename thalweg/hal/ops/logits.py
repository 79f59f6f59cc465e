"""Changes to logits before sampling: penalties, banned words, biases, masks. Knows nothing of requests."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op

V = 70
"""Vocabulary of the samples: not a multiple of 32."""


def _penalty_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    f32, i32 = np.float32, np.int32
    return (
        rng.normal(size=(3, V)).astype(f32), rng.integers(0, V, (5, 12)).astype(i32), np.array([2, 4, 0], i32),
        np.array([12, 7, 1], i32), np.array([5, 7, 1], i32), np.array([1.3, 0.8, 1], f32), np.array([0.5, -0.5, 0], f32),
        np.array([0.2, 0, 0], f32),
    )  # fmt: skip


@op(samples=[Sample("three-rows", _penalty_sample)], tolerances={"float32": 1e-6})
def penalties(
    logits: Tensor, history: Tensor, slots: Tensor, lengths: Tensor, prompt_len: Tensor, repetition: Tensor,
    presence: Tensor, frequency: Tensor,
) -> Tensor:  # fmt: skip
    """logits f32[S, V], history i32[slots, L], the rest [S] -> f32[S, V]. lengths = tokens known (context + query).

    Repetition (Keskar et al. 2019, CTRL): a positive logit of a token seen in prompt or output is divided by it, a
    negative one multiplied. Then the OpenAI penalties, for tokens seen in the output (positions >= prompt_len): minus
    frequency * times seen, minus presence.
    """
    vocab = logits.shape[1]
    position = torch.arange(history.shape[1], device=logits.device, dtype=torch.int32)
    rows = history[slots.long()].clamp(0, vocab - 1)
    known = position < lengths[:, None]
    output = known & (position >= prompt_len[:, None])
    seen = _count(rows, known, vocab) > 0
    times = _count(rows, output, vocab)
    scale = torch.where(seen, repetition[:, None], 1.0)
    logits = torch.where(logits > 0, logits / scale, logits * scale)
    return logits - frequency[:, None] * times - presence[:, None] * (times > 0)


def _count(tokens: Tensor, which: Tensor, vocab: int) -> Tensor:
    """How often each id occurs in each row where `which`: [S, L] -> f32[S, V]. Others are counted in a column cut off."""
    ids = torch.where(which, tokens, vocab).long()
    zeros = torch.zeros(tokens.shape[0], vocab + 1, dtype=torch.float32, device=tokens.device)
    return zeros.scatter_add(1, ids, torch.ones_like(ids, dtype=torch.float32))[:, :vocab]


def _bad_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    i32 = np.int32
    history = np.zeros((3, 8), i32)
    history[1, :4], history[2, :2] = [9, 4, 5, 6], [5, 6]
    words = np.array([[-1, 5, 6, 7], [4, 5, 6, 8], [3, 5, 6, 9], [-1, -1, -1, 1], [9, 5, 6, 2], [-1, -1, -1, -1]], i32)
    return (
        rng.normal(size=(2, V)).astype(np.float32), history, np.array([1, 2], i32), np.array([4, 2], i32),
        np.array([0, 0, 0, 0, 1, 0], i32), words,
    )  # fmt: skip


@op(samples=[Sample("match-miss-short", _bad_sample)])
def bad_words(logits: Tensor, history: Tensor, slots: Tensor, lengths: Tensor, bad_row: Tensor, bad_words: Tensor) -> Tensor:
    """The last token of each word becomes -inf in its row if the sequence ends with the tokens before it.

    logits f32[S, V], history i32[slots, L], slots and lengths i32[S], bad_row i32[W] (row in S), bad_words i32[W, N]
    padded on the left with -1 (a row of nothing but -1 does nothing) -> f32[S, V].
    """
    row, before, last = bad_row.long(), bad_words[:, :-1], bad_words[:, -1]
    behind = torch.arange(before.shape[1], device=logits.device, dtype=torch.int32) - before.shape[1]
    at = lengths[row][:, None] + behind
    there = history[slots[row].long()[:, None], at.clamp(0, history.shape[1] - 1).long()]
    hit = ((before < 0) | ((there == before) & (at >= 0))).all(1) & (last >= 0)
    ban = torch.where(hit, float("-inf"), 0.0).to(logits.dtype)
    return logits.index_put((row, last.clamp(min=0).long()), ban, accumulate=True)


def _bias_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    i32, f32 = np.int32, np.float32
    value = np.array([1.5, -np.inf, 0, 2], f32)
    return rng.normal(size=(3, V)).astype(f32), np.array([0, 1, 0, 2], i32), np.array([3, 69, 0, 3], i32), value


@op(samples=[Sample("add-and-ban", _bias_sample)])
def logit_bias(logits: Tensor, row: Tensor, token: Tensor, value: Tensor) -> Tensor:
    """logits[row[i], token[i]] + value[i] for every i. logits f32[S, V], row and token i32[N], value f32[N]. -inf
    bans."""
    return logits.index_put((row.long(), token.long()), value, accumulate=True)


def _mask_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    words = rng.integers(0, 2**32, (3, -(-V // 32)), dtype=np.uint32)
    return rng.normal(size=(3, V)).astype(np.float32), words.view(np.int32)


@op(samples=[Sample("random-bits", _mask_sample)])
def token_mask(logits: Tensor, mask: Tensor) -> Tensor:
    """-inf where a token is not allowed: logits f32[S, V], mask i32[S, ceil(V / 32)] (the bits of StepBatch.mask)."""
    bits = (mask.unsqueeze(-1) >> torch.arange(32, device=mask.device, dtype=torch.int32)) & 1
    return torch.where(bits.flatten(1)[:, : logits.shape[1]] != 0, logits, float("-inf"))
