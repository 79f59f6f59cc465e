"""Drafts: which of them a step returns, and what a draft model reads after the step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.step import SCRATCH


def _verify_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """All right, the second wrong, none, one without drafts, a chunk of a prompt, infinite logits."""
    i32 = np.int32
    pick = np.array([[0, 1, 2, -1], [3, 4, 5, -1], [6, -1, -1, -1], [-1] * 4, [-1] * 4, [7, 8, -1, -1]], i32)
    tokens, most = rng.integers(0, 99, 15).astype(i32), rng.normal(size=15).astype(np.float32)
    guesses = tokens[6:].copy()
    guesses[[4, 6]] += 1
    most[[6 + 5, 6 + 8, 3]] = np.inf
    slots, lengths = np.array([3, 1, 2, 5, 4, 6], i32), np.array([14, 9, 6, 3, 7, 8], i32)
    return tokens, most, guesses, pick, slots, lengths, np.array([1, 1, 1, 1, 0, 1], bool)


@op(samples=[Sample("six-sequences", _verify_sample)])
def verify_drafts(
    tokens: Tensor, most: Tensor, guesses: Tensor, pick: Tensor, slots: Tensor, lengths: Tensor, emit: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The tokens sampled before the drafts of each sequence, as far as drafts are right, and the one after those.

    tokens i32[S + N] and most f32[S + N]: the sample and the largest logit of each sequence's last row, then of the row before
    each draft. guesses i32[N]: the drafts. pick i32[S, K]: index in N of each draft of a sequence, in order, then -1. slots,
    lengths i32[S]: tokens of each sequence with all of its drafts. emit bool[S].

    Returns (tokens i32[S, K], counts i32[S] of real ones, invalid bool[S]: a logit of a real one was NaN or +inf, and for the
    history slots i32[S * K] and positions i32[S * K] of the tokens; SCRATCH for those that are not real)."""
    n, width = pick.shape
    column = torch.arange(width, device=pick.device, dtype=torch.int32)
    row = torch.arange(n, device=pick.device, dtype=torch.int32)
    at = torch.where(pick < 0, row[:, None], pick + n)
    right = torch.cat([row < 0, tokens[n:] == guesses])
    chosen, good, bad = (a.index_select(0, at.flatten()).view(n, width) for a in (tokens, right, ~(most < float("inf"))))
    accepted = good.to(torch.int32).cumprod(1).sum(1).to(torch.int32)
    real = (column <= accepted[:, None]) & emit[:, None]
    first = lengths - (pick >= 0).sum(1).to(torch.int32)
    counts = torch.where(emit, accepted + 1, 0).to(torch.int32)
    owners = torch.where(real, slots[:, None], SCRATCH).flatten()
    return chosen, counts, (bad & real).any(1), owners, (first[:, None] + column).flatten()


def _inputs_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """A token alone, accepted and rejected drafts, a chunk of a prompt that samples nothing, and padding without tokens."""
    i32 = np.int32
    query, context = np.array([1, 4, 3, 5, 0], i32), np.array([6, 9, 13, 0, 0], i32)
    start = np.cumsum(query, dtype=i32) - query
    token_seq = np.repeat(np.arange(5, dtype=i32), query)
    positions = np.arange(13, dtype=i32) - np.repeat(start - context, query)
    pick = np.array([[-1] * 4, [0, 1, 2, -1], [3, 4, -1, -1], [-1] * 4, [-1] * 4], i32)
    returned, counts = rng.integers(0, 99, (5, 4)).astype(i32), np.array([1, 4, 2, 0, 0], i32)
    last = start + query - i32(1)
    return rng.integers(0, 99, 13).astype(i32), token_seq, positions, context, query, last, returned, counts, pick


@op(samples=[Sample("five-sequences", _inputs_sample, {"passes": 3, "limit": 17})])
def draft_inputs(
    tokens: Tensor, token_seq: Tensor, positions: Tensor, context: Tensor, query: Tensor, last_row: Tensor, returned: Tensor,
    counts: Tensor, pick: Tensor, *, passes: int, limit: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """A step's tokens and the newest token that it returned of each sequence, as a draft model reads them.

    tokens, token_seq, positions i32[T] and context, query, last_row i32[S]: of the batch. returned i32[S, K], counts i32[S]: of
    its result. pick i32[S, any]: drafts that it verified are >= 0. limit: positions are below it.

    Returns (tokens, token_seq, positions i32[T + S], query, last_row i32[S], row i32[S]: the newest token's in T + S, after
    i32[1 + passes, S]: its position and those of the next `passes`). The newest token takes the place of the first rejected
    draft. Rows after it mean nothing, and no row before attends to them."""
    n, t = query.shape[0], tokens.shape[0]
    each = torch.arange(n, device=tokens.device, dtype=torch.int32)
    ends = last_row + each + 1
    place = torch.cat([torch.arange(t, device=tokens.device, dtype=torch.int32) + token_seq, ends]).long()
    order = torch.zeros_like(place).scatter(0, place, torch.arange(t + n, device=tokens.device))
    position = torch.cat([positions, context + query]).index_select(0, order)
    owner = torch.cat([token_seq, each]).index_select(0, order)
    accepted = (counts - 1).clamp(min=0)
    row = ends - ((pick >= 0).sum(1).to(torch.int32) - accepted)
    known = torch.cat([tokens, torch.zeros_like(each)]).index_select(0, order)
    newest = torch.where(counts > 0, returned.gather(1, accepted.long()[:, None])[:, 0], known.index_select(0, row))
    known = known.index_copy(0, row.long(), newest)
    steps = torch.arange(1 + passes, device=tokens.device, dtype=torch.int32)
    after = (position.index_select(0, row) + steps[:, None]).clamp(max=limit - 1)
    return known, owner, position.clamp(max=limit - 1), query + 1, ends, row, after


def _pairs_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """The sample of `draft_inputs`. A chunk and a token alone begin without state."""
    return (*_inputs_sample(rng), np.array([True, False, False, True, False]))


@op(samples=[Sample("five-sequences", _pairs_sample, {"passes": 3, "limit": 17})])
def pair_inputs(
    tokens: Tensor, token_seq: Tensor, positions: Tensor, context: Tensor, query: Tensor, last_row: Tensor, returned: Tensor,
    counts: Tensor, pick: Tensor, fresh: Tensor, *, passes: int, limit: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The tokens of `draft_inputs` as layers read them that pair each token with the hidden state of the target before it. A
    pair lies at the position of that state.

    fresh bool[S]: no state of the token before the step is known, so the sequence begins with its second token.

    Returns (tokens, token_seq, positions i32[T + S], context, query, last_row, row i32[S]: of a batch of pairs, row the newest
    token's; after i32[1 + passes, S] as `draft_inputs`; source i64[T + S]: each pair's hidden state, in those of the step's T
    tokens and then the S before the step; kept i32[S]: the row in T of each sequence's last accepted token; each, one i32[S]:
    0, 1 ... and 1, 1 ...: `token_seq` and `query` of one pair per sequence)."""
    t = tokens.shape[0]
    found = draft_inputs.reference(
        tokens, token_seq, positions, context, query, last_row, returned, counts, pick, passes=passes, limit=limit
    )
    ids, owner, position, count, ends, row, after = found
    begun, each = fresh.to(torch.int32), torch.arange(query.shape[0], device=tokens.device, dtype=torch.int32)
    late, at = begun.index_select(0, owner), torch.arange(ids.shape[0], device=ids.device, dtype=torch.int32)
    source = torch.minimum(at + late, ends.index_select(0, owner))
    first = at == (ends - count + 1).index_select(0, owner)
    hidden = torch.where(first, owner + t, (at - owner - 1).clamp(min=0)).long()
    kept = last_row - ((pick >= 0).sum(1).to(torch.int32) - (counts - 1).clamp(min=0))
    return (
        ids.index_select(0, source), owner, position - 1 + late, context - 1 + begun, count, ends, row - begun, after,
        hidden.index_select(0, source), kept.to(torch.int32), each, torch.ones_like(each),
    )  # fmt: skip


def _newest_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Context, query, returned, counts and pick of the sample of `draft_inputs`."""
    _, _, _, context, query, _, returned, counts, pick = _inputs_sample(rng)
    return context, query, returned, counts, pick


@op(samples=[Sample("five-sequences", _newest_sample, {"passes": 3, "limit": 17})])
def newest_tokens(
    context: Tensor, query: Tensor, returned: Tensor, counts: Tensor, pick: Tensor, *, passes: int, limit: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The newest token that a step returned of each sequence, for layers that read the target's cache. Arguments are those of
    `draft_inputs`.

    Returns (row i32[S]: the sampled row that returned it, in those of S sequences and then of the N drafts, token i32[S], after
    i32[1 + passes, S]: its position and those of the next `passes`, each, one i32[S]: 0, 1 ... and 1, 1 ...). A sequence that
    returns nothing has token 0 after its new ones."""
    each = torch.arange(query.shape[0], device=query.device, dtype=torch.int32)
    accepted, drafts = (counts - 1).clamp(min=0), (pick >= 0).sum(1).to(torch.int32)
    rows = torch.cat([torch.where(pick < 0, each[:, None], pick + query.shape[0]), each[:, None]], 1)
    row = rows.gather(1, accepted.long()[:, None])[:, 0].to(torch.int32)
    token = torch.where(counts > 0, returned.gather(1, accepted.long()[:, None])[:, 0], 0).to(torch.int32)
    steps = torch.arange(1 + passes, device=query.device, dtype=torch.int32)
    after = (context + query - (drafts - accepted) + steps[:, None]).clamp(max=limit - 1).to(torch.int32)
    return row, token, after, each, torch.ones_like(each)


def _owned_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """No block, a part of one, one, and all."""
    return rng.integers(1, 99, (4, 5)).astype(np.int32), np.array([0, 7, 8, 40], np.int32)


@op(samples=[Sample("four-sequences", _owned_sample, {"block": 8, "more": 2})])
def owned_blocks(table: Tensor, room: Tensor, *, block: int, more: int) -> Tensor:
    """Block tables without what lies behind the blocks of each sequence, and wider: i32[S, N + more]. Positions there are of
    scratch, so that a draft may be stored at any position.

    table i32[S, N]: blocks of `block` tokens; entries behind those of a sequence may be of others. room i32[S]: tokens that
    fit in its blocks."""
    at = torch.arange(table.shape[1], device=table.device, dtype=torch.int32) * block
    found = torch.where(at < room[:, None], table, SCRATCH).to(torch.int32)
    return torch.nn.functional.pad(found, (0, more), value=SCRATCH)
