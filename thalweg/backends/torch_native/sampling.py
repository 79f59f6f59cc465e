"""Truncation without a full sort, the draw without noise for the whole vocabulary, the k best without a sort."""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.hal.noise import HIGHEST
from thalweg.hal.op import Kernel
from thalweg.hal.ops.sampling import gumbel, row_keys

FIRST = 128
"""Top tokens of a row that truncation looks at first. 8 times as many each time they do not suffice."""


def _truncate(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Every rule keeps a prefix of the tokens ordered by logit, then id. The length of the prefix is found among the best few.
    More are looked at only if it reaches their end."""
    rows = ((top_k > 0) | (top_p < 1) | (min_p > 0)).nonzero()[:, 0]
    if rows.shape[0] == logits.shape[0]:
        return _truncate_rows(logits, top_k, top_p, min_p)
    return logits.index_copy(0, rows, _truncate_rows(logits[rows], top_k[rows], top_p[rows], min_p[rows]))


def _truncate_rows(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    vocab = logits.shape[1]
    out = torch.empty_like(logits)
    left, look = torch.arange(logits.shape[0]), min(FIRST, vocab)
    while left.shape[0]:
        mine = [a[left] for a in (logits, top_k, top_p, min_p)]
        best = mine[0].topk(look, dim=-1).values
        keep, sure = _prefix(best, *mine)
        done = sure.nonzero()[:, 0]
        out[left[done]] = _cut(mine[0][done], best[done], keep[done])
        left, look = left[(~sure).nonzero()[:, 0]], min(look * 8, vocab)
    return out


def _prefix(best: Tensor, logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> tuple[Tensor, Tensor]:
    """(how many of the ordered tokens stay, whether `best` was enough to know): best f32[S, m] in descending order."""
    look, vocab = best.shape[1], logits.shape[1]
    at = torch.arange(look)
    likely = torch.exp(best - best[:, :1]) >= min_p[:, None]
    k = torch.where(top_k > 0, top_k, vocab).clamp(max=vocab)
    kth = best.gather(1, (k.clamp(max=look)[:, None] - 1).long())
    inside = likely & ((best >= kth) | (k > look)[:, None])
    kept = torch.where(inside, best, float("-inf"))
    cut_short = ~inside[:, -1]  # the survivors of min_p and top_k all lie in `best`
    weight = torch.exp(kept - best[:, :1])
    everything = torch.exp(logits - best[:, :1])
    everything = torch.where(everything >= min_p[:, None], everything, 0.0).sum(-1, keepdim=True)
    total = torch.where(cut_short[:, None], weight.sum(-1, keepdim=True), everything)
    known = cut_short | (k == vocab)  # else top_k cuts beyond `best`, so the total for top_p is not known
    p = weight / total
    nucleus = (torch.cumsum(p, -1) - p < top_p[:, None]) | (top_p >= 1)[:, None]
    stays = inside & (nucleus | (at == 0))
    return stays.sum(-1), (known & ~stays[:, -1]) | (look == vocab)


def _cut(logits: Tensor, best: Tensor, keep: Tensor) -> Tensor:
    """Keep the `keep` largest logits of each row, equals in order of their ids. -inf elsewhere. A row with the whole vocabulary
    as `keep` keeps all."""
    edge = best.gather(1, (keep.clamp(min=1)[:, None] - 1).long())
    stays = logits >= edge
    surplus = stays.sum(-1) - keep
    for row in (surplus > 0).nonzero()[:, 0].tolist():
        equal = (logits[row] == edge[row]).nonzero()[:, 0]
        stays[row, equal[equal.shape[0] - int(surplus[row]) :]] = False
    return logits.masked_fill(~stays, float("-inf"))


def _sample(logits: Tensor, temperature: Tensor, seed: Tensor, position: Tensor, *, random: bool) -> Tensor:
    """Noise only where it can matter. Let t be a row's argmax. The sample's logit + noise is at least logit(t) + noise(t), and
    no noise exceeds HIGHEST. A token with logit + HIGHEST < logit(t) + noise(t) therefore cannot be sampled, and its noise is
    never computed. The result is the one of the definition."""
    top, greedy = logits.max(-1)
    greedy = greedy.to(torch.int32)
    rows = (temperature > 0).nonzero()[:, 0] if random else greedy[:0]
    if rows.shape[0] == 0:
        return greedy
    k0, k1 = row_keys(seed, position)
    floor = top + gumbel(k0, k1, greedy) - HIGHEST
    out, ids = greedy.clone(), torch.arange(logits.shape[1], dtype=torch.int32)
    for row in rows.tolist():
        scores = logits[row]
        able = scores >= floor[row]
        if int(able.sum()) > logits.shape[1] // 4:  # picking them out costs more than it saves
            out[row] = (scores + gumbel(k0[row], k1[row], ids)).argmax()
            continue
        able = able.nonzero()[:, 0]
        if able.shape[0]:
            noisy = scores[able] + gumbel(k0[row], k1[row], able.to(torch.int32))
            out[row] = able[noisy.argmax()]
    return out


def _logprobs(logits: Tensor, tokens: Tensor, *, k: int, normalise: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Only the values asked for are normalised."""
    vocab = logits.shape[1]
    shift = torch.logsumexp(logits, -1, keepdim=True) if normalise else 0.0
    chosen = logits.gather(1, tokens.long()[:, None])
    ranks = (logits > chosen).sum(-1).to(torch.int32) + 1
    k = min(k, vocab)
    if k == 0:
        return tokens[:, None], chosen - shift, ranks
    best, ids = logits.topk(min(k + 1, vocab), dim=-1)
    if bool((best[:, 1:] == best[:, :-1]).any()):  # topk leaves the order of equals open
        best, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    best, ids = best[:, :k], ids[:, :k].to(torch.int32)
    return torch.cat([tokens[:, None], ids], 1), torch.cat([chosen, best], 1) - shift, ranks


SAMPLING = (
    Kernel("truncate", "prefix", _truncate, batch_invariant=True),
    Kernel("sample", "bounded-noise", _sample, batch_invariant=True),
    Kernel("logprobs", "topk", _logprobs, batch_invariant=True),
)
