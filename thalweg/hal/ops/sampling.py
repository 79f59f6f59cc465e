"""From logits to tokens: truncation, the draw, and log probabilities. The noise is defined in `thalweg.hal.noise`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.noise import MULTIPLY, SALT_HIGH, SALT_LOW, STRIDE
from thalweg.hal.op import Sample, op

V = 200


def _truncate_sample(tied: bool) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        logits = rng.normal(size=(6, V)) * 3
        logits = np.round(logits) if tied else logits
        return (
            logits.astype(np.float32), np.array([0, 5, 0, 0, 20, 1000], np.int32),
            np.array([1, 1, 0.7, 1, 0.9, 0.01], np.float32), np.array([0, 0, 0, 0.1, 0.05, 0], np.float32),
        )  # fmt: skip

    return Sample("ties" if tied else "plain", make)


@op(samples=[_truncate_sample(False), _truncate_sample(True)])
def truncate(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """-inf where a token is cut: logits f32[S, V] (already divided by temperature), the rest [S] -> f32[S, V].

    The order is min_p, top_k, top_p. min_p cuts tokens less likely than min_p times the argmax. top_k (0 = off) cuts logits
    below the k-th largest, and equals of the k-th stay. top_p (1 = off, Holtzman et al. 2019) cuts a token if the more likely
    ones already hold a probability of top_p of the remaining tokens, equals in order of their ids. The argmax always stays.
    """
    top = logits.amax(-1, keepdim=True)
    logits = logits.masked_fill(torch.exp(logits - top) < min_p[:, None], float("-inf"))
    ordered, order = torch.sort(logits, dim=-1, descending=True, stable=True)
    vocab = logits.shape[1]
    last = torch.where(top_k > 0, top_k.clamp(max=vocab), vocab)[:, None].long() - 1
    ordered = ordered.masked_fill(ordered < ordered.gather(1, last), float("-inf"))
    p = torch.softmax(ordered, -1)
    cut = (torch.cumsum(p, -1) - p >= top_p[:, None]) & (top_p < 1)[:, None]
    cut = torch.cat([torch.zeros_like(cut[:, :1]), cut[:, 1:]], 1)
    ordered = ordered.masked_fill(cut, float("-inf"))
    return torch.empty_like(logits).scatter(1, order, ordered)


def _to_int32(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int32."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """`thalweg.hal.noise.mix` on int32, with products that wrap around."""
    x = x ^ _shift(x, 16)
    x = x * _to_int32(MULTIPLY[0])
    x = x ^ _shift(x, 15)
    x = x * _to_int32(MULTIPLY[1])
    return x ^ _shift(x, 16)


def row_keys(seed: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """(k0, k1) of `thalweg.hal.noise`: seed i32[S, 2], position i32[S] -> i32[S] each."""
    lo, hi = seed[:, 0], seed[:, 1]
    k0 = mix(mix(mix(lo + _to_int32(SALT_LOW)) ^ hi) + position)
    k1 = mix(mix(mix(hi + _to_int32(SALT_HIGH)) ^ lo) ^ (position * _to_int32(STRIDE)))
    return k0, k1


def gumbel(k0: Tensor, k1: Tensor, tokens: Tensor) -> Tensor:
    """Noise of token ids under row keys, all i32 and broadcast against each other -> f32."""
    h = mix(mix(tokens + k0) ^ k1)
    unsigned = _shift(h, 8).to(torch.float32) * 256.0 + (h & 255).to(torch.float32)
    v = ((unsigned + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    return -torch.log(-torch.log1p(-v))


def _draw_sample(random: bool) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        logits = (rng.normal(size=(8, V)) * 3).astype(np.float32)
        logits[0, 100:], logits[1, 7], logits[1, 9] = -np.inf, 50, 50
        temperature = np.array([1, 0, 0.7, 1, 1, 2, 0, 1], np.float32)
        seed = rng.integers(-(2**31), 2**31, (8, 2)).astype(np.int32)
        return logits, temperature, seed, rng.integers(0, 5000, 8).astype(np.int32)

    return Sample("random" if random else "greedy", make, {"random": random})


@op(samples=[_draw_sample(False), _draw_sample(True)])
def sample(logits: Tensor, temperature: Tensor, seed: Tensor, position: Tensor, *, random: bool) -> Tensor:
    """One token per row: logits f32[S, V] (already divided by temperature), temperature f32[S], seed i32[S, 2],
    position i32[S] = index of the token being sampled -> i32[S].

    A row of temperature 0 gives the argmax, of equals the lowest id. Any other row draws from softmax(logits): the
    argmax of logit + noise(seed, position, id), with the noise of `thalweg.hal.noise`. random=False says that every
    row is of temperature 0.
    """
    greedy = logits.argmax(-1).to(torch.int32)
    if not random:
        return greedy
    ids = torch.arange(logits.shape[1], device=logits.device, dtype=torch.int32)
    k0, k1 = row_keys(seed, position)
    drawn = (logits + gumbel(k0[:, None], k1[:, None], ids)).argmax(-1).to(torch.int32)
    return torch.where(temperature > 0, drawn, greedy)


def _all_at_once_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    logits, temperature, seed, position = _draw_sample(True).make(rng)
    f32 = np.float32
    top_k, top_p, min_p = np.array([0, 3, 7, 0, 0, 12, 0, 0]), np.array([1, 1, 0.8, 0.5, 1, 0.9, 1, 0.1]), np.full(8, 0.0)
    min_p[4:6] = 0.1
    return logits, temperature, top_k.astype(np.int32), top_p.astype(f32), min_p.astype(f32), seed, position


@op(samples=[Sample("mixed", _all_at_once_sample)])
def draw(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, seed: Tensor, position: Tensor
) -> tuple[Tensor, Tensor]:
    """Temperature, `truncate` and `sample` in one: logits f32[S, V], seed i32[S, 2], the rest [S] -> (tokens i32[S],
    most f32[S]: the largest of each row after division, NaN if one is).

    For devices that save passes over the logits by it. Others are asked for the parts.
    """
    scaled = logits / torch.where(temperature > 0, temperature, 1.0)[:, None]
    kept = truncate(scaled, top_k, top_p, min_p)
    return sample(kept, temperature, seed, position, random=True), scaled.amax(-1)


def _logprobs_sample(k: int, normalise: bool, tied: bool = False) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        logits = (rng.normal(size=(4, V)) * 3).astype(np.float32)
        return np.round(logits) if tied else logits, rng.integers(0, V, 4).astype(np.int32)

    return Sample(f"k{k}{'' if normalise else '-logits'}{'-ties' if tied else ''}", make, {"k": k, "normalise": normalise})


@op(
    samples=[_logprobs_sample(0, True), _logprobs_sample(5, True), _logprobs_sample(5, True, True), _logprobs_sample(3, False)],
    tolerances={"float32": 1e-6},
)
def logprobs(logits: Tensor, tokens: Tensor, *, k: int, normalise: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The chosen token and the k best of each row: logits f32[N, V], tokens i32[N] -> (ids i32[N, 1 + k],
    values f32[N, 1 + k], ranks i32[N]).

    Values are log_softmax(logits), or with normalise=False the logits. Equals come in order of their ids. A token's
    rank is 1 + the number of tokens strictly more likely.
    """
    values = torch.log_softmax(logits, -1) if normalise else logits
    chosen = values.gather(1, tokens.long()[:, None])
    ranks = (values > chosen).sum(-1).to(torch.int32) + 1
    if k == 0:
        return tokens[:, None], chosen, ranks
    best, ids = torch.sort(values, dim=-1, descending=True, stable=True)
    return torch.cat([tokens[:, None], ids[:, :k].to(torch.int32)], 1), torch.cat([chosen, best[:, :k]], 1), ranks
