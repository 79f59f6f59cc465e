"""Truncation and the draw: one pass over the logits, then launches over little.

1. `_survey` reads each row once, in chunks. Of each chunk it leaves the maximum and the best token, and of truncated rows
   the sum of exponentials and the maximum of every GROUP tokens.
2. `_choose` joins the chunks of a row. A greedy row and one without truncation have their token now. Of the others it
   lists the groups with the largest maxima. LISTED / 2 groups hold at least as many of the best tokens. More are
   listed where maxima are equal.
3. `_settle` reads the tokens of listed groups, finds the bounds of the kept tokens bit by bit of a key, and draws. Where more
   may stay than it holds, it searches the whole row, BITS of a key each time: flat rows, and many equal logits.

The work of a row depends only on that row, and so does every sum. `truncate` and `draw` find bounds by the same code.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from thalweg.backends.triton_kernels.sampling import NOBODY, _gumbel
from thalweg.backends.triton_kernels.tiles import TileSizes, VocabTiles
from thalweg.hal.op import Kernel

FINITE = tl.constexpr(0x00800000)
"""Key of the least finite float. Below it is only -inf, neither kept nor drawn, so it need not be held."""


@triton.jit
def _key(x):
    """uint32 keys in the order of the floats."""
    bits = (x + 0.0).to(tl.uint32, bitcast=True)
    return tl.where((bits >> 31) != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def _value(key):
    """The float that has this key."""
    return tl.where((key >> 31) != 0, key ^ 0x80000000, key ^ 0xFFFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def _cuts(k, p, least, vocab):
    """Is a row truncated?"""
    return ((k > 0) & (k < vocab)) | (p < 1) | (least > 0)


@triton.jit
def _scale(temperature, s, DRAWS: tl.constexpr):
    """The divisor of a row."""
    scale = tl.full([], 1.0, tl.float32)
    if DRAWS:
        t = tl.load(temperature + s)
        scale = tl.where(t > 0, t, 1.0)
    return scale


@triton.jit
def _noise(seed, position, s, i):
    lo = tl.load(seed + 2 * s).to(tl.uint32, bitcast=True)
    hi = tl.load(seed + 2 * s + 1).to(tl.uint32, bitcast=True)
    at = tl.load(position + s).to(tl.uint32, bitcast=True)
    return _gumbel(lo, hi, at, i.to(tl.uint32))


@triton.jit
def _survey(
    logits, temperature, top_k, top_p, min_p, seed, position, most, sums, best, best_id, groups, row, vocab, chunks, parts,
    DRAWS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One chunk of one row. most: NaN if a logit is."""
    s, c = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = c * BLOCK + tl.arange(0, BLOCK)
    ok = i < vocab
    x = tl.load(logits + s * row + i, mask=ok, other=float("-inf"))
    cut = _cuts(tl.load(top_k + s), tl.load(top_p + s), tl.load(min_p + s), vocab)
    at = s * chunks + c
    if DRAWS:
        drawn = tl.load(temperature + s) > 0
        cut = cut & drawn
        x = tl.div_rn(x, _scale(temperature, s, DRAWS))
        y = x
        if drawn & (cut == 0):
            y = x + _noise(seed, position, s, i)
        score = tl.max(y, 0)
        tl.store(best + at, score)
        tl.store(best_id + at, tl.min(tl.where((y == score) & ok, i, NOBODY), 0))
    top = tl.max(x, 0)
    broken = tl.max((x != x).to(tl.int32), 0)
    tl.store(most + at, tl.where(broken != 0, float("nan"), top))
    if cut:
        tl.store(sums + at, tl.sum(tl.where(x > float("-inf"), tl.exp(x - top), 0.0), 0))
        j = c * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
        tl.store(groups + s * parts + j, tl.max(tl.reshape(x, [BLOCK // GROUP, GROUP]), 1), mask=j < parts)


@triton.jit
def _reach(key, weight, want):
    """The largest key such that the weights at or above it add up to `want` or more, or 0. key, weight: of the held tokens."""
    found = tl.full([], 0, tl.uint32)
    one = tl.full([], 1, tl.uint32)
    for bit in range(0, 32):
        bound = found | (one << (31 - bit))
        found = tl.where(tl.sum(tl.where(key >= bound, weight, 0.0), 0) >= want, bound, found)
    return found


@triton.jit
def _choose(
    temperature, top_k, top_p, min_p, most, sums, best, best_id, groups, tokens, largest, facts, counts, listed, vocab, chunks,
    parts, DRAWS: tl.constexpr, CHUNKS: tl.constexpr, PARTS: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """One row. facts: its maximum and sum of exponentials. counts: how many groups are listed (-1: it is not truncated), and
    the key at or above which every token is in them."""
    s = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, CHUNKS)
    of_chunk = tl.load(most + s * chunks + c, mask=c < chunks, other=float("-inf"))
    top = tl.max(tl.where(of_chunk == of_chunk, of_chunk, float("-inf")), 0)
    k = tl.load(top_k + s)
    cut = _cuts(k, tl.load(top_p + s), tl.load(min_p + s), vocab)
    if DRAWS:
        cut = cut & (tl.load(temperature + s) > 0)
        broken = tl.max((of_chunk != of_chunk).to(tl.int32), 0)
        tl.store(largest + s, tl.where(broken != 0, float("nan"), top))
        score = tl.load(best + s * chunks + c, mask=c < chunks, other=float("-inf"))
        i = tl.load(best_id + s * chunks + c, mask=c < chunks, other=NOBODY)
        token = tl.min(tl.where(score == tl.max(score, 0), i, NOBODY), 0)
        tl.store(tokens + s, tl.where(token < vocab, token, 0))
    tl.store(facts + 2 * s, top)
    tl.store(counts + 2 * s, -1)
    if cut:
        sum_of_chunk = tl.load(sums + s * chunks + c, mask=c < chunks, other=0.0)
        tl.store(facts + 2 * s + 1, tl.sum(tl.where(sum_of_chunk > 0, sum_of_chunk * tl.exp(of_chunk - top), 0.0), 0))
        j = tl.arange(0, PARTS)
        key = tl.where(j < parts, _key(tl.load(groups + s * parts + j, mask=j < parts, other=float("-inf"))), 0)
        want = tl.where((k > 0) & (k < LISTED // 2), k, LISTED // 2).to(tl.float32)
        edge = tl.maximum(_reach(key, tl.where(j < parts, 1.0, 0.0), want), FINITE)
        chosen = (key >= edge).to(tl.int32)
        place = tl.cumsum(chosen, 0) - 1
        tl.store(listed + s * LISTED + place, j, mask=(chosen != 0) & (place < LISTED))
        tl.store(counts + 2 * s, tl.sum(chosen, 0))
        tl.store(counts + 2 * s + 1, edge.to(tl.int32, bitcast=True))


@triton.jit
def _weight(x, ok, floor, least, top, MASS: tl.constexpr):
    """A token's weight: 1, or (MASS) its probability times a constant, 0 if it is cut."""
    if MASS:
        w = tl.exp(x - top)
        return tl.where(ok & (_key(x) >= floor) & (w >= least), w, 0.0)
    return tl.where(ok, 1.0, 0.0)


@triton.jit
def _search(x_row, scale, vocab, want, floor, least, top, MASS: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr):
    """The largest key such that the tokens at or above it count `want` or more together: of a whole row, BITS bits per pass."""
    found = floor * 0
    digits = tl.arange(0, 2**BITS).to(tl.uint32)
    for step in range(0, 32 // BITS):
        shift = 32 - BITS - step * BITS
        bound = found + (digits << shift)
        sums = tl.zeros([2**BITS], tl.float32)
        for start in range(0, vocab, BLOCK):
            i = start + tl.arange(0, BLOCK)
            x = tl.div_rn(tl.load(x_row + i, mask=i < vocab, other=float("-inf")), scale)
            w = _weight(x, i < vocab, floor, least, top, MASS)
            sums += tl.sum(tl.where(_key(x)[None, :] >= bound[:, None], w[None, :], 0.0), 1)
        found += tl.max(tl.where(sums >= want, digits, 0).to(tl.int32), 0).to(tl.uint32) << shift
    return found


@triton.jit
def _spare(goal, above, edge, top, vocab):
    """How many of the tokens with the last key that stays do."""
    each = tl.exp(_value(edge) - top)
    left = tl.where(each > 0, (goal - above) / each, 1.0)
    return tl.maximum(tl.minimum(tl.ceil(left), vocab).to(tl.int32), 1)


@triton.jit
def _bounds_of_row(x_row, scale, vocab, k, p, least, top, BLOCK: tl.constexpr, BITS: tl.constexpr):
    """(floor, edge, last) of a row, read many times. A token stays if its key reaches `floor`, and is above `edge` or equals
    it with an id up to `last`, and it is as likely as min_p wants."""
    floor = tl.full([], 0, tl.uint32)
    edge = tl.full([], 0, tl.uint32)
    last = tl.full([], 0, tl.int32) + vocab
    if (k > 0) & (k < vocab):
        floor = _search(x_row, scale, vocab, k.to(tl.float32), floor, 0.0, top, False, BLOCK, BITS)
    if p < 1:
        mass = tl.full([], 0.0, tl.float32)
        for start in range(0, vocab, BLOCK):
            i = start + tl.arange(0, BLOCK)
            x = tl.div_rn(tl.load(x_row + i, mask=i < vocab, other=float("-inf")), scale)
            mass += tl.sum(_weight(x, i < vocab, floor, least, top, True), 0)
        goal = p * mass
        edge = tl.minimum(_search(x_row, scale, vocab, goal, floor, least, top, True, BLOCK, BITS), _key(top))
        above = tl.full([], 0.0, tl.float32)
        for start in range(0, vocab, BLOCK):
            i = start + tl.arange(0, BLOCK)
            x = tl.div_rn(tl.load(x_row + i, mask=i < vocab, other=float("-inf")), scale)
            above += tl.sum(tl.where(_key(x) > edge, _weight(x, i < vocab, floor, least, top, True), 0.0), 0)
        spare = _spare(goal, above, edge, top, vocab)
        seen = 0
        last = last * 0
        for start in range(0, vocab, BLOCK):
            i = start + tl.arange(0, BLOCK)
            x = tl.div_rn(tl.load(x_row + i, mask=i < vocab, other=float("-inf")), scale)
            same = ((_key(x) == edge) & (i < vocab)).to(tl.int32)
            last = tl.maximum(last, tl.max(tl.where((same != 0) & (seen + tl.cumsum(same, 0) <= spare), i, 0), 0))
            seen += tl.sum(same, 0)
    return floor, edge, last


@triton.jit
def _stays(x, i, floor, edge, last, least, top):
    key = _key(x)
    inside = (key > edge) | ((key == edge) & (i <= last))
    return (key >= floor) & inside & (tl.exp(x - top) >= least)


@triton.jit
def _better(x, i, stay, seed, position, s, score, token):
    """(score, token) of the best so far and these, which have higher ids: of equals the lowest id."""
    y = tl.where(stay, x + _noise(seed, position, s, i), float("-inf"))
    more = tl.max(y, 0)
    who = tl.min(tl.where(stay & (y == more), i, NOBODY), 0)
    return tl.maximum(score, more), tl.where(more > score, who, token)


@triton.jit
def _draw_of_row(x_row, scale, seed, position, s, vocab, floor, edge, last, least, top, BLOCK: tl.constexpr):
    """The token drawn of those that stay, of a whole row."""
    score = tl.full([], float("-inf"), tl.float32)
    token = tl.full([], 0, tl.int32)
    for start in range(0, vocab, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.div_rn(tl.load(x_row + i, mask=i < vocab, other=float("-inf")), scale)
        stay = (i < vocab) & _stays(x, i, floor, edge, last, least, top)
        score, token = _better(x, i, stay, seed, position, s, score, token)
    return token


@triton.jit
def _load_candidates(x_row, scale, vocab, listed, n, first, COUNT: tl.constexpr, GROUP: tl.constexpr):
    """(ids, whether they are any, logits) of tokens of a row's n listed groups, in the order of ids: COUNT from the first."""
    j = first + tl.arange(0, COUNT)
    i = tl.load(listed + j // GROUP, mask=j // GROUP < n, other=0) * GROUP + j % GROUP
    ok = (j // GROUP < n) & (i < vocab)
    return i, ok, tl.div_rn(tl.load(x_row + i, mask=ok, other=float("-inf")), scale)


@triton.jit
def _settle(
    logits, temperature, top_k, top_p, min_p, seed, position, facts, counts, listed, tokens, bounds, row, vocab,
    DRAWS: tl.constexpr, LISTED: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """One row. DRAWS: its token, if it is truncated. Else `bounds`: floor, edge and last, as `_bounds_of_row` gives them."""
    s = tl.program_id(0).to(tl.int64)
    n = tl.load(counts + 2 * s)
    floor = tl.full([], 0, tl.uint32)
    edge = tl.full([], 0, tl.uint32)
    last = tl.full([], 0, tl.int32) + vocab
    if n >= 0:
        k, p, least = tl.load(top_k + s), tl.load(top_p + s), tl.load(min_p + s)
        top, total = tl.load(facts + 2 * s), tl.load(facts + 2 * s + 1)
        reach = tl.load(counts + 2 * s + 1).to(tl.uint32, bitcast=True)
        scale, x_row = _scale(temperature, s, DRAWS), logits + s * row
        _, ok, x = _load_candidates(x_row, scale, vocab, listed + s * LISTED, n, 0, LISTED * GROUP, GROUP)
        key = tl.where(ok, _key(x), 0)
        # Are all that min_p and top_k leave held?
        whole = (reach <= FINITE) | ((least > 0) & (tl.exp(_value(reach) - top) < least))
        if (k > 0) & (k < vocab):
            floor = _reach(key, tl.where(ok, 1.0, 0.0), k.to(tl.float32))
            whole = whole | (floor >= reach)
        known = whole
        if p < 1:
            mass = tl.where(key > 0, _weight(x, ok, floor, least, top, True), 0.0)
            goal = p * tl.where(whole, tl.sum(mass, 0), total)
            only = (least <= 0) & ((k <= 0) | (k >= vocab))  # then tokens not held count as they are
            known = whole | (only & (tl.sum(tl.where(key >= reach, mass, 0.0), 0) >= goal))
            edge = tl.minimum(_reach(key, mass, goal), _key(top))
            spare = _spare(goal, tl.sum(tl.where(key > edge, mass, 0.0), 0), edge, top, vocab)
            same = (key == edge).to(tl.int32)
            j = tl.max(tl.where((same != 0) & (tl.cumsum(same, 0) <= spare), tl.arange(0, LISTED * GROUP), 0), 0)
            last = tl.load(listed + s * LISTED + j // GROUP, mask=j // GROUP < n, other=0) * GROUP + j % GROUP
        if known & (n <= LISTED):
            if DRAWS:
                score = tl.full([], float("-inf"), tl.float32)
                token = tl.full([], 0, tl.int32)
                for first in range(0, LISTED * GROUP, LISTED * GROUP // 4):  # of fewer tokens: noise needs many registers
                    i, held, again = _load_candidates(
                        x_row, scale, vocab, listed + s * LISTED, n, first, LISTED * GROUP // 4, GROUP
                    )
                    stay = held & _stays(again, i, floor, edge, last, least, top)
                    score, token = _better(again, i, stay, seed, position, s, score, token)
                tl.store(tokens + s, tl.where(token < vocab, token, 0))
        else:
            floor, edge, last = _bounds_of_row(x_row, scale, vocab, k, p, least, top, BLOCK, BITS)
            if DRAWS:
                token = _draw_of_row(x_row, scale, seed, position, s, vocab, floor, edge, last, least, top, BLOCK)
                tl.store(tokens + s, tl.where(token < vocab, token, 0))
    if not DRAWS:
        tl.store(bounds + 3 * s, floor.to(tl.int32, bitcast=True))
        tl.store(bounds + 3 * s + 1, edge.to(tl.int32, bitcast=True))
        tl.store(bounds + 3 * s + 2, last)


@triton.jit
def _cut(logits, min_p, facts, bounds, out, row, vocab, BLOCK: tl.constexpr):
    """One chunk of one row: -inf where a token does not stay."""
    s = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + s * row + i, mask=i < vocab, other=float("-inf"))
    floor = tl.load(bounds + 3 * s).to(tl.uint32, bitcast=True)
    edge = tl.load(bounds + 3 * s + 1).to(tl.uint32, bitcast=True)
    stay = _stays(x, i, floor, edge, tl.load(bounds + 3 * s + 2), tl.load(min_p + s), tl.load(facts + 2 * s))
    tl.store(out + s * vocab + i, tl.where(stay, x, float("-inf")), mask=i < vocab)


def _bounds(
    t: VocabTiles, logits: Tensor, temperature: Tensor | None, top_k: Tensor, top_p: Tensor, min_p: Tensor, seed: Tensor | None,
    position: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """(tokens i32[S], most f32[S], facts f32[S, 2], bounds i32[S, 3]). Without a temperature the first two mean nothing, with
    one the last does not."""
    seqs, vocab = logits.shape
    chunks, parts = triton.cdiv(vocab, t.chunk), triton.cdiv(vocab, t.group)
    device, draws = logits.device, temperature is not None

    def floats(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    def integers(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    most, sums, best, best_id = floats(seqs, chunks), floats(seqs, chunks), floats(seqs, chunks), integers(seqs, chunks)
    groups, facts, counts, listed = floats(seqs, parts), floats(seqs, 2), integers(seqs, 2), integers(seqs, t.listed)
    tokens, largest, bounds = integers(seqs), floats(seqs), integers(seqs, 3)
    requested: tuple[Any, ...] = (temperature, top_k, top_p, min_p)
    _survey[(seqs, chunks)](
        logits, *requested, seed, position, most, sums, best, best_id, groups, logits.stride(0), vocab, chunks, parts,
        DRAWS=draws,
        BLOCK=t.chunk, GROUP=t.group, num_warps=t.warps,
    )  # fmt: skip
    _choose[(seqs,)](
        *requested, most, sums, best, best_id, groups, tokens, largest, facts, counts, listed, vocab, chunks, parts,
        DRAWS=draws,
        CHUNKS=triton.next_power_of_2(chunks), PARTS=triton.next_power_of_2(parts), LISTED=t.listed, num_warps=t.held_warps,
    )  # fmt: skip
    _settle[(seqs,)](
        logits, *requested, seed, position, facts, counts, listed, tokens, bounds, logits.stride(0), vocab, DRAWS=draws,
        LISTED=t.listed, GROUP=t.group, BLOCK=t.block, BITS=t.bits, num_warps=t.held_warps,
    )  # fmt: skip
    return tokens, largest, facts, bounds


def truncate(t: VocabTiles, logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    seqs, vocab = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    *_, facts, bounds = _bounds(t, logits, None, top_k, top_p, min_p, None, None)
    out = torch.empty((seqs, vocab), dtype=logits.dtype, device=logits.device)
    _cut[(seqs, triton.cdiv(vocab, t.chunk))](
        logits, min_p, facts, bounds, out, logits.stride(0), vocab, BLOCK=t.chunk, num_warps=t.warps
    )
    return out


def draw(
    t: VocabTiles,
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    position: Tensor,
) -> tuple[Tensor, Tensor]:
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    tokens, most, *_ = _bounds(t, logits, temperature, top_k, top_p, min_p, seed.contiguous(), position)
    return tokens, most


def kernels(t: TileSizes) -> tuple[Kernel, ...]:
    part = functools.partial
    return (
        Kernel("truncate", "triton", part(truncate, t.vocab), batch_invariant=True),
        Kernel("draw", "triton", part(draw, t.vocab), batch_invariant=True),
    )
