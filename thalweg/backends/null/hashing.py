"""The hash model: arithmetic that needs the whole history, kept in the paged cache as a real model keeps keys and values.

With v(p) = mix(token * A + p * B + salt) for the token at position p, all in 64-bit wrap-around arithmetic:

    h(p) = h(p - 1) + v(p)             stored at position p's place in the cache, where h(p - 1) is read too
    s(g) = sum of h(j) over the positions j that the token at p attends to in KV group g, all read from the cache
    next token = (mix(s(0) * C**1 + s(1) * C**2 + ...) >> 1) mod vocabulary, then the next one up that is allowed

A recurrent group (window STATE) attends to every position too, but keeps no h per token: its block holds (h, sum of all h so
far), read from the first column of its table and written to the second.

h(p) depends on every token before p, so no two histories share it. The sum reads every block of the table. `mix` is
the finaliser of SplitMix64 (Steele, Lea, Flood 2014). Biases of -inf, masks and multi-token bad words are honoured (by
taking the next allowed token up), so that their bookkeeping can be checked too. Other sampling parameters are not.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.hal.parts.bad_words import BadWords
from thalweg.hal.parts.bias import Bias
from thalweg.hal.parts.drafts import Drafts
from thalweg.hal.parts.history import History
from thalweg.hal.parts.mask import Mask
from thalweg.hal.parts.scores import Scores
from thalweg.hal.step import Logprobs, StateBox, StepBatch, StepResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

    I64 = NDArray[np.int64]

A = np.int64(0x1E3779B97F4A7C15)
B = np.int64(0x42B2AE3D27D4EB4F)
C = np.int64(0x165667B19E3779F9)
STATE = -1
"""Value of a window for a recurrent group."""

_M1 = np.int64(np.uint64(0xBF58476D1CE4E5B9).astype(np.int64))
_M2 = np.int64(np.uint64(0x94D049BB133111EB).astype(np.int64))


def mix(x: I64) -> I64:
    """SplitMix64's finaliser on int64 bit patterns."""
    u = x.view(np.uint64)
    y = (u ^ (u >> np.uint64(30))).view(np.int64) * _M1
    u = y.view(np.uint64)
    y = (u ^ (u >> np.uint64(27))).view(np.int64) * _M2
    u = y.view(np.uint64)
    return (u ^ (u >> np.uint64(31))).view(np.int64)


class HashModel:
    """An executable: runs a step at once on the arrays of the state."""

    def __init__(self, state: StateBox, vocab: int, salt: int, windows: tuple[int, ...]) -> None:
        self._state = state
        self._vocab = vocab
        self._salt = np.int64(salt)
        self._windows = windows

    def __call__(self, batch: StepBatch) -> StepResult:
        caches: list[I64] = self._state.value["kv"]
        history: NDArray[np.int32] = self._state.value["history"]
        if len(caches) != len(batch.block_tables) or len(caches) != len(self._windows):
            counts = f"{len(self._windows)} windows, {len(caches)} caches and {len(batch.block_tables)} block tables"
            raise ValueError(f"null: {counts} do not match; one of each per KV group is needed")
        drafts, scores, unseen = batch.get(Drafts), batch.get(Scores), batch.get(History)
        if unseen is not None:
            history[unseen.slot, unseen.position] = unseen.token
        owner = batch.slots[batch.token_seq]
        tokens = np.where(batch.tokens < 0, history[owner, batch.positions], batch.tokens)
        history[owner, batch.positions] = tokens
        emit = np.nonzero(batch.emit)[0]
        reached = batch.context + batch.query
        # Rows that sample: the last of each sequence that emits, and the one before each draft.
        rows, ends, at = emit, reached[emit], batch.last_row[emit]
        if drafts is not None:
            rows = np.concatenate([rows, batch.token_seq[drafts.row]])
            ends = np.concatenate([ends, batch.positions[drafts.row]])
            at = np.concatenate([at, drafts.row - 1])
        carried: list[tuple[I64, NDArray[np.int32], I64, I64]] = []
        seen = np.zeros(rows.size, np.int64)
        hashes = np.zeros(tokens.size, np.int64)
        factor = C
        for cache, table, window in zip(caches, batch.block_tables, self._windows, strict=True):
            if window == STATE:
                hashes, sums = self._carry(batch, cache, table, tokens)
                carried.append((cache, table, hashes, sums))
                attended = sums[at]
            else:
                hashes = self._write(batch, cache, table, tokens)
                attended = self._attend(cache, table[rows], window, ends)
            with np.errstate(over="ignore"):
                seen += factor * attended
                factor = factor * C
        picked = (mix(seen).view(np.uint64) >> np.uint64(1)).astype(np.int64) % self._vocab
        out = np.zeros(batch.slots.shape[0], np.int64)
        out[emit] = picked[: emit.size]
        named = np.concatenate([emit, -1 - np.arange(rows.size - emit.size)])
        if any(batch.get(kind) is not None for kind in (Bias, BadWords, Mask)):
            self._skip_banned(batch, history, picked, named, rows, ends)
            out[emit] = picked[: emit.size]
        if drafts is not None:
            result = verify_drafts(batch, drafts, out, picked[emit.size :], tokens)
            first = reached - (drafts.pick >= 0).sum(1)
            row, column = np.nonzero(np.arange(result.tokens.shape[1]) < result.counts[:, None])
            history[batch.slots[row], first[row] + column] = result.tokens[row, column]
        else:
            history[batch.slots[emit], reached[emit]] = out[emit]
            result = StepResult(out.astype(np.int32)[:, None], batch.emit.astype(np.int32))
        wrong = 0 if drafts is None else (drafts.pick >= 0).sum(1) - np.maximum(result.counts - 1, 0)
        for cache, table, h, sums in carried:
            self._settle(batch, cache, table, h, sums, batch.last_row - wrong)
        if batch.features.logprobs >= 0:
            at = batch.last_row[:, None] if drafts is None else _rows_before(batch, drafts)
            chosen = result.tokens.astype(np.int64).ravel()
            result.logprobs = hash_logprobs(chosen, hashes[at.ravel()], batch.features.logprobs, self._vocab)
        if scores is not None:
            result.score = hash_logprobs(scores.target.astype(np.int64), hashes[scores.row], scores.level, self._vocab)
        return result

    def _hash(self, batch: StepBatch, stored: I64, tokens: Any) -> I64:
        """h of every token of the batch. stored: h before the first of each sequence. Any value for one without
        history."""
        with np.errstate(over="ignore"):
            v = mix(tokens.astype(np.int64) * A + batch.positions.astype(np.int64) * B + self._salt)
            h: I64 = np.where(batch.context > 0, stored, 0)[batch.token_seq] + _running(v, batch)
        return h

    def _write(self, batch: StepBatch, cache: I64, table: NDArray[np.int32], tokens: Any) -> I64:
        """h of every token of the batch, stored at its place."""
        bt = cache.shape[1]
        at = np.maximum(batch.context - 1, 0)
        h = self._hash(batch, cache[table[np.arange(at.size), at // bt], at % bt], tokens)
        cache[table[batch.token_seq, batch.positions // bt], batch.positions % bt] = h
        return h

    def _carry(self, batch: StepBatch, cache: I64, table: NDArray[np.int32], tokens: Any) -> tuple[I64, I64]:
        """h of every token of the batch, and the sum of every h up to it."""
        before = cache[table[:, 0]]
        h = self._hash(batch, before[:, 0], tokens)
        with np.errstate(over="ignore"):
            sums = np.where(batch.context > 0, before[:, 1], 0)[batch.token_seq] + _running(h, batch)
        return h, sums

    def _settle(
        self, batch: StepBatch, cache: I64, table: NDArray[np.int32], h: I64, sums: I64, last: NDArray[np.int64]
    ) -> None:
        """The state of each sequence after row `last` of the batch, its last one or that of its last accepted draft. A step
        with drafts leaves another in the spare block."""
        has = batch.query > 0
        if batch.get(Drafts) is not None:
            cache[table[has, 2]] = -1
        cache[table[has, 1]] = np.stack([h[last[has]], sums[last[has]]], axis=1)

    def _attend(self, cache: I64, table: NDArray[np.int32], window: int, reached: Any) -> I64:
        """Sum of the stored h over all positions that the last of `reached` tokens attends to. table: a row for each."""
        if not reached.size:
            return np.zeros(0, np.int64)
        bt = cache.shape[1]
        begin = np.maximum(reached - window, 0) if window else np.zeros_like(reached)
        first = begin // bt
        width = int((-(-reached // bt) - first).max())
        columns = np.minimum(first[:, None] + np.arange(width), table.shape[1] - 1)
        values = cache[np.take_along_axis(table, columns, axis=1)].reshape(reached.size, width * bt)
        positions = (first * bt)[:, None] + np.arange(width * bt)
        inside = (positions >= begin[:, None]) & (positions < reached[:, None])
        total: I64 = np.where(inside, values, 0).sum(axis=1)
        return total

    def _skip_banned(
        self, batch: StepBatch, history: NDArray[np.int32], picked: I64, named: Any, rows: Any, ends: Any
    ) -> None:  # fmt: skip
        """Move each token of `picked` up to the next one that nothing bans. named: its row, as parts name rows of logits. rows,
        ends: its sequence, and its position."""
        banned: dict[int, set[int]] = {}
        places = {name: (int(batch.slots[row]), int(end)) for name, row, end in zip(named.tolist(), rows, ends, strict=True)}
        bias, bad, masks = batch.get(Bias), batch.get(BadWords), batch.get(Mask)
        if bias is not None:
            for row, token, value in zip(bias.row.tolist(), bias.token.tolist(), bias.value.tolist(), strict=True):
                if value == float("-inf"):
                    banned.setdefault(row, set()).add(token)
        for row, words in zip(bad.row.tolist(), bad.words.tolist(), strict=True) if bad is not None else ():
            word = [w for w in words if w >= 0]
            slot, end = places.get(row, (0, -1))
            if word and end >= len(word) - 1 and history[slot, end - len(word) + 1 : end].tolist() == word[:-1]:
                banned.setdefault(row, set()).add(word[-1])
        for i, row in enumerate(named.tolist()):
            mask = None
            if masks is not None and (row >= 0 or masks.ahead.size):
                mask = masks.allowed[row] if row >= 0 else masks.ahead[-1 - row]
            picked[i] = self._next(int(picked[i]), mask, banned.get(row, set()))

    def _next(self, token: int, mask: NDArray[np.uint32] | None, banned: Collection[int] = ()) -> int:
        """The token, or the next allowed one above it."""
        if not banned and (mask is None or bool((mask == 0xFFFFFFFF).all())):
            return token
        ok = np.ones(self._vocab, np.bool_)
        if mask is not None:
            bits = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), bitorder="little")
            ok[:] = bits[: self._vocab]
        ok[[t for t in banned if t < self._vocab]] = False
        found = np.flatnonzero(ok)
        at = int(np.searchsorted(found, token))
        return int(found[at if at < found.size else 0]) if found.size else token


def _running(v: I64, batch: StepBatch) -> I64:
    """Sums of `v` over the tokens of each sequence in the batch, from its first to each."""
    total, has = np.cumsum(v), batch.query > 0
    before = np.zeros(batch.slots.shape[0], np.int64)
    first = (batch.last_row - batch.query + 1)[has]
    before[has] = total[first] - v[first]
    sums: I64 = total - before[batch.token_seq]
    return sums


def verify_drafts(batch: StepBatch, drafts: Drafts, last: I64, before: I64, tokens: Any) -> StepResult:
    """The result of a step with drafts. last: the sample of each sequence's last row. before: that of the row before each
    draft. tokens: of the batch, all known."""
    pick = drafts.pick
    sampled = np.where(pick < 0, last[:, None], before[pick])
    right = (pick >= 0) & (before == tokens[drafts.row])[pick]
    accepted = np.cumprod(right, axis=1).sum(1)
    return StepResult(sampled.astype(np.int32), np.where(batch.emit, accepted + 1, 0).astype(np.int32))


def _rows_before(batch: StepBatch, drafts: Drafts) -> I64:
    """i64[S, K]: the row in T before each token of a result."""
    rows: I64 = np.where(drafts.pick < 0, batch.last_row[:, None], drafts.row[drafts.pick] - 1)
    return rows


def hash_logprobs(tokens: Any, seen: I64, k: int, vocab: int) -> Logprobs:
    """Values that name their inputs. Of a token after hash `seen`: -((mix(seen + token) mod 2^20) / 2^20). The k others are the
    tokens after it."""
    ids = (tokens.astype(np.int64)[:, None] + np.arange(1 + k)) % vocab
    with np.errstate(over="ignore"):
        values = -((mix(seen[:, None] + ids) & np.int64(0xFFFFF)).astype(np.float32) / np.float32(1 << 20))
    return Logprobs(ids.astype(np.int32), values, np.ones(tokens.shape[0], np.int32))
