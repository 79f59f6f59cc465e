"""From logits to tokens: the draw with the defined noise, log probabilities. Truncation is in `truncation`.

Counts and maxima have no order, and sums are made block by block in the order of ids. A row's result thus does not depend on
the rest of the batch. A row that holds NaN or +inf gives some token: the engine knows that it means nothing.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from thalweg.backends.triton_kernels.tiles import TileSizes, VocabTiles
from thalweg.hal.noise import MULTIPLY, SALT_HIGH, SALT_LOW, STRIDE
from thalweg.hal.op import Kernel

MOST_BEST = 64
"""Top tokens per row that `logprobs` looks for. Beyond it the reference body sorts."""
M0 = tl.constexpr(MULTIPLY[0])
M1 = tl.constexpr(MULTIPLY[1])
LOW = tl.constexpr(SALT_LOW)
HIGH = tl.constexpr(SALT_HIGH)
STEP = tl.constexpr(STRIDE)
NOBODY = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _log(x):
    """Natural logarithm of normal positive float32 to about an ulp, near 1 as well (the polynomial of Cephes' logf).
    A device's own log may be good to 2^-22 absolutely, which near 1 is a large relative error."""
    bits = x.to(tl.int32, bitcast=True)
    e = (bits >> 23) - 127
    m = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    big = m > 1.41421356
    m = tl.where(big, m * 0.5, m)
    n = tl.where(big, e + 1, e).to(tl.float32)
    f = m - 1.0
    z = f * f
    y = 7.0376836292e-2 * f - 1.1514610310e-1
    y = y * f + 1.1676998740e-1
    y = y * f - 1.2420140846e-1
    y = y * f + 1.4249322787e-1
    y = y * f - 1.6668057665e-1
    y = y * f + 2.0000714765e-1
    y = y * f - 2.4999993993e-1
    y = y * f + 3.3333331174e-1
    y = y * f * z - 2.12194440e-4 * n - 0.5 * z
    return (f + y) + 0.693359375 * n


@triton.jit
def _mix(x):
    """`thalweg.hal.noise.mix` on uint32."""
    x = x ^ (x >> 16)
    x = x * M0
    x = x ^ (x >> 15)
    x = x * M1
    return x ^ (x >> 16)


@triton.jit
def _gumbel(lo, hi, p, t):
    """`thalweg.hal.noise.noise`: words of the seed, position and token ids, all uint32 -> float32."""
    k0 = _mix(_mix(_mix(lo + LOW) ^ hi) + p)
    k1 = _mix(_mix(_mix(hi + HIGH) ^ lo) ^ (p * STEP))
    h = _mix(_mix(t + k0) ^ k1)
    whole = (h >> 8).to(tl.int32).to(tl.float32) * 256.0 + (h & 255).to(tl.int32).to(tl.float32)
    v = tl.minimum((whole + 0.5) * 2.3283064365386963e-10, 0.99999994039535522)
    u = 1.0 - v  # rounded, with the rounding's loss added back to the first order
    return -_log(-(_log(u) + ((1.0 - u) - v) / u))


@triton.jit
def _draw(
    logits, temperature, seed, position, best, best_id, row, vocab, chunks, RANDOM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The best of one chunk of one row: largest logit (+ noise), of equals the lowest id."""
    s, c = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = c * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + s * row + i, mask=i < vocab, other=float("-inf"))
    if RANDOM:  # noqa: SIM102 - settled by the compiler, the other when it runs
        if tl.load(temperature + s) > 0:
            lo = tl.load(seed + 2 * s).to(tl.uint32, bitcast=True)
            hi = tl.load(seed + 2 * s + 1).to(tl.uint32, bitcast=True)
            at = tl.load(position + s).to(tl.uint32, bitcast=True)
            x += _gumbel(lo, hi, at, i.to(tl.uint32))
    most = tl.max(x, 0)
    tl.store(best + s * chunks + c, most)
    tl.store(best_id + s * chunks + c, tl.min(tl.where((x == most) & (i < vocab), i, NOBODY), 0))


@triton.jit
def _pick(best, best_id, out, vocab, chunks, BLOCK: tl.constexpr):
    s = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    x = tl.load(best + s * chunks + c, mask=c < chunks, other=float("-inf"))
    i = tl.load(best_id + s * chunks + c, mask=c < chunks, other=NOBODY)
    token = tl.min(tl.where(x == tl.max(x, 0), i, NOBODY), 0)
    tl.store(out + s, tl.where(token < vocab, token, 0))


@triton.jit
def _take(x, i, free):
    """(value, id, which are left) of the largest free x, of equals the lowest id."""
    most = tl.max(tl.where(free, x, float("-inf")), 0)
    who = tl.min(tl.where(free & (x == most), i, NOBODY), 0)
    return most, who, free & (i != who)


@triton.jit
def _best_of_chunk(
    logits, tokens, stats, ranks, best, best_id, row, vocab, chunks, K: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Of one chunk: maximum and sum of exponentials, how many are likelier than the chosen token, and the K best."""
    s, c = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = c * BLOCK + tl.arange(0, BLOCK)
    free = i < vocab
    x = tl.load(logits + s * row + i, mask=free, other=float("-inf"))
    most = tl.max(x, 0)
    at = s * chunks + c
    tl.store(stats + at * 2, most)
    tl.store(stats + at * 2 + 1, tl.sum(tl.where(free & (x > float("-inf")), tl.exp(x - most), 0.0), 0))
    chosen = tl.load(logits + s * row + tl.load(tokens + s))
    tl.store(ranks + at, tl.sum((x > chosen).to(tl.int32), 0))
    for j in range(0, K):
        value, who, free = _take(x, i, free)
        tl.store(best + at * K + j, value)
        tl.store(best_id + at * K + j, who)


@triton.jit
def _best_of_row(
    logits, tokens, stats, ranks, best, best_id, ids, values, rank, row, chunks,
    K: tl.constexpr, NORMALISE: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    s = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, CHUNKS)
    most = tl.load(stats + (s * chunks + c) * 2, mask=c < chunks, other=float("-inf"))
    sums = tl.load(stats + (s * chunks + c) * 2 + 1, mask=c < chunks, other=0.0)
    tl.store(rank + s, tl.sum(tl.load(ranks + s * chunks + c, mask=c < chunks, other=0), 0) + 1)
    top = tl.max(most, 0)
    total = tl.sum(tl.where(sums > 0, sums * tl.exp(most - top), 0.0), 0)
    shift = top * 0.0
    if NORMALISE:
        shift = _log(total)
    else:
        top = shift
    token = tl.load(tokens + s)
    tl.store(ids + s * (K + 1), token)
    tl.store(values + s * (K + 1), tl.load(logits + s * row + token) - top - shift)
    if K > 0:
        n = tl.arange(0, BLOCK)
        x = tl.load(best + s * chunks * K + n, mask=n < chunks * K, other=float("-inf"))
        i = tl.load(best_id + s * chunks * K + n, mask=n < chunks * K, other=NOBODY)
        free = i != NOBODY
        for j in range(0, K):
            value, who, free = _take(x, i, free)
            tl.store(ids + s * (K + 1) + 1 + j, who)
            tl.store(values + s * (K + 1) + 1 + j, value - top - shift)


def sample(t: VocabTiles, logits: Tensor, temperature: Tensor, seed: Tensor, position: Tensor, *, random: bool) -> Tensor:
    seqs, vocab = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    chunks = triton.cdiv(vocab, t.chunk)
    best = torch.empty((seqs, chunks), dtype=torch.float32, device=logits.device)
    best_id = torch.empty((seqs, chunks), dtype=torch.int32, device=logits.device)
    out = torch.empty(seqs, dtype=torch.int32, device=logits.device)
    _draw[(seqs, chunks)](
        logits, temperature, seed.contiguous(), position, best, best_id, logits.stride(0), vocab, chunks, RANDOM=random,
        BLOCK=t.chunk, num_warps=t.warps,
    )  # fmt: skip
    _pick[(seqs,)](best, best_id, out, vocab, chunks, BLOCK=triton.next_power_of_2(chunks), num_warps=1)
    return out


def logprobs(t: VocabTiles, logits: Tensor, tokens: Tensor, *, k: int, normalise: bool) -> tuple[Tensor, Tensor, Tensor]:
    rows, vocab = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    k, chunks, device = min(k, vocab), triton.cdiv(vocab, t.chunk), logits.device
    f32, i32 = torch.float32, torch.int32
    stats, counts = (torch.empty((rows, chunks, n), dtype=d, device=device) for n, d in ((2, f32), (1, i32)))
    best, best_id = (torch.empty((rows, chunks, max(1, k)), dtype=d, device=device) for d in (f32, i32))
    ids, values = (torch.empty((rows, 1 + k), dtype=d, device=device) for d in (i32, f32))
    ranks = torch.empty(rows, dtype=i32, device=device)
    if rows == 0:
        return ids, values, ranks
    _best_of_chunk[(rows, chunks)](
        logits, tokens, stats, counts, best, best_id, logits.stride(0), vocab, chunks, K=k, BLOCK=t.chunk, num_warps=t.warps
    )
    _best_of_row[(rows,)](
        logits, tokens, stats, counts, best, best_id, ids, values, ranks, logits.stride(0), chunks, K=k, NORMALISE=normalise,
        CHUNKS=triton.next_power_of_2(chunks), BLOCK=triton.next_power_of_2(chunks * max(1, k)), num_warps=4,
    )  # fmt: skip
    return ids, values, ranks


def _few(spec) -> str | None:
    return None if spec["k"] <= MOST_BEST else f"looks for {MOST_BEST} tokens at most, not {spec['k']}"


def kernels(t: TileSizes) -> tuple[Kernel, ...]:
    part = functools.partial
    return (
        Kernel("sample", "triton", part(sample, t.vocab), batch_invariant=True),
        Kernel("logprobs", "triton", part(logprobs, t.vocab), supports=_few, batch_invariant=True),
    )
