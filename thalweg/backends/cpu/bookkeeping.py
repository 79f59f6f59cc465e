"""Small integer work of a step in numpy: a call of it costs about a third of a call of torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Kernel
from thalweg.hal.step import ON_DEVICE, SCRATCH

Array = np.ndarray[Any, Any]
FEW = 32
"""Up to so many numbers, a loop of Python is quicker than array operations: each of those costs about a microsecond."""


def _over_arrays(core: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of tensors that computes `core`. Recorded steps call the core with the same arrays each time."""

    @functools.wraps(core)
    def run(*args: Tensor, **static: Any) -> Any:
        found = core(*(a.numpy() for a in args), **static)
        return tuple(map(torch.from_numpy, found)) if isinstance(found, tuple) else torch.from_numpy(found)

    run.core = core  # type: ignore[attr-defined]
    return run


@_over_arrays
def resolve_tokens(tokens: Array, history: Array, token_slots: Array, positions: Array) -> Array:
    if tokens.size <= FEW and ON_DEVICE not in tokens.tolist():
        return tokens
    known = history[token_slots, np.minimum(np.maximum(positions, 0), history.shape[1] - 1)]
    return np.where(tokens == ON_DEVICE, known, tokens)


def _write(history: Array, slots: Array, positions: Array, tokens: Array) -> Array:
    if slots.size <= FEW:
        longest = history.shape[1]
        for slot, at, token in zip(slots.tolist(), positions.tolist(), tokens.tolist(), strict=True):
            if slot == SCRATCH or not 0 <= at < longest:
                slot, at = SCRATCH, 0
            history[slot, at] = token
        return history
    keep = (slots != SCRATCH) & (positions >= 0) & (positions < history.shape[1])
    history[np.where(keep, slots, SCRATCH), np.where(keep, positions, 0)] = tokens
    return history


def history_write(history: Tensor, slots: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """In place."""
    _write(history.numpy(), slots.numpy(), positions.numpy(), tokens.numpy())
    return history


history_write.core = _write  # type: ignore[attr-defined]


@_over_arrays
def verify_drafts(
    tokens: Array, most: Array, guesses: Array, pick: Array, slots: Array, lengths: Array, emit: Array
) -> tuple[Array, ...]:
    if pick.size <= FEW:
        return _verify_few(tokens, most, guesses, pick, slots, lengths, emit)
    n, width = pick.shape
    drafted, column = pick >= 0, np.arange(width, dtype=np.int32)
    at = np.where(drafted, pick + n, np.arange(n, dtype=np.int32)[:, None])
    right = np.zeros(tokens.size, np.bool_)
    np.equal(tokens[n:], guesses, out=right[n:])
    accepted = np.logical_and.accumulate(right[at], 1).sum(1, dtype=np.int32)
    real = (column <= accepted[:, None]) & emit[:, None]
    counts = np.where(emit, accepted + 1, 0).astype(np.int32)
    invalid = (~(most < np.inf)[at] & real).any(1)
    owners = np.where(real, slots[:, None], np.int32(SCRATCH))
    positions = (lengths - drafted.sum(1, dtype=np.int32))[:, None] + column
    return tokens[at], counts, invalid, owners.reshape(-1), positions.reshape(-1)


def _verify_few(
    tokens: Array, most: Array, guesses: Array, pick: Array, slots: Array, lengths: Array, emit: Array
) -> tuple[Array, ...]:
    """The same, a sequence after the other."""
    n, width = pick.shape
    drawn, guessed, finite = tokens.tolist(), guesses.tolist(), (most < np.inf).tolist()
    at: list[int] = []
    owners: list[int] = []
    positions: list[int] = []
    counts, invalid = [], []
    for i, picks in enumerate(pick.tolist()):
        rows = [n + p if p >= 0 else i for p in picks]
        accepted = 0
        while accepted < width and picks[accepted] >= 0 and drawn[rows[accepted]] == guessed[picks[accepted]]:
            accepted += 1
        real = min(accepted + 1, width) if emit[i] else 0
        first = int(lengths[i]) - sum(p >= 0 for p in picks)
        at += rows
        counts.append(accepted + 1 if emit[i] else 0)
        invalid.append(not all(finite[row] for row in rows[:real]))
        owners += [int(slots[i])] * real + [SCRATCH] * (width - real)
        positions += range(first, first + width)
    chosen, i32 = tokens[at].reshape(n, width), np.int32
    return chosen, np.array(counts, i32), np.array(invalid), np.array(owners, i32), np.array(positions, i32)


def _arrange(
    tokens: Array, token_seq: Array, positions: Array, context: Array, query: Array, last_row: Array, returned: Array,
    counts: Array, pick: Array, *, passes: int, limit: int,
) -> tuple[Array, ...]:  # fmt: skip
    n, t = query.shape[0], tokens.shape[0]
    each, i32 = np.arange(n, dtype=np.int32), np.int32
    ends, place = last_row + each + i32(1), np.arange(t, dtype=np.int32) + token_seq
    known, owner, position = np.zeros((3, t + n), np.int32)
    known[place], owner[place], position[place] = tokens, token_seq, positions
    position[-1] = position[-2] + 1  # behind tokens that fill a chunk up
    owner[ends], position[ends] = each, context + query
    accepted = np.maximum(counts - i32(1), i32(0))
    row = ends - ((pick >= 0).sum(1, dtype=np.int32) - accepted)
    emits = counts > 0
    known[row[emits]] = returned[each[emits], accepted[emits]]
    after = np.minimum(position[row] + np.arange(1 + passes, dtype=np.int32)[:, None], i32(limit - 1))
    return known, owner, np.minimum(position, i32(limit - 1)), query + i32(1), ends, row, after


draft_inputs = _over_arrays(_arrange)


@_over_arrays
def pair_inputs(*args: Array, passes: int, limit: int) -> tuple[Array, ...]:
    tokens, _, _, context, _, last_row, _, counts, pick, fresh = args
    if tokens.size + context.size <= FEW and not fresh.any():
        return _pair_few(*args[:-1], passes=passes, limit=limit)
    ids, owner, position, count, ends, row, after = _arrange(*args[:-1], passes=passes, limit=limit)
    i32, each = np.int32, np.arange(context.size, dtype=np.int32)
    late, at = fresh[owner], np.arange(ids.size, dtype=np.int32)
    source = np.minimum(at + late, ends[owner])
    hidden = np.maximum(at - owner - i32(1), i32(0)).astype(np.int64)
    first = ends - count + i32(1)
    hidden[first] = each + i32(tokens.size)
    kept = last_row - ((pick >= 0).sum(1, dtype=np.int32) - np.maximum(counts - i32(1), i32(0)))
    return (
        ids[source], owner, position - i32(1) + late, context - i32(1) + fresh, count, ends, row - fresh, after, hidden[source],
        kept, each, np.ones_like(each),
    )  # fmt: skip


def _pair_few(
    tokens: Array, token_seq: Array, positions: Array, context: Array, query: Array, last_row: Array, returned: Array,
    counts: Array, pick: Array, *, passes: int, limit: int,
) -> tuple[Array, ...]:  # fmt: skip
    """The same where no sequence is fresh, a sequence after the other."""
    n, t, i32 = context.size, tokens.size, np.int32
    given, picks = tokens.tolist(), pick.tolist()
    lengths = [t] if n == 1 else query.tolist()  # one sequence has the tokens that fill its chunk up
    known: list[int] = []
    owner: list[int] = []
    position: list[int] = []
    hidden: list[int] = []
    newest: list[int] = []
    after: list[int] = []
    begin = 0
    for i, (start, end, count) in enumerate(zip(context.tolist(), last_row.tolist(), counts.tolist(), strict=True)):
        new, accepted = lengths[i], max(count - 1, 0)
        last = end - sum(p >= 0 for p in picks[i]) + accepted
        ids = [*given[begin : begin + new], 0]
        if count > 0:
            ids[last + 1 - begin] = int(returned[i, accepted])
        known += ids
        owner += [i] * (new + 1)
        position += range(start, start + new + 1)
        hidden += [t + i, *range(begin, begin + new)]
        newest.append(last)
        after.append(start + last + 1 - begin)
        begin += new
    each, kept = np.arange(n, dtype=i32), np.array(newest, i32)
    later = np.minimum(np.array([[at + k for at in after] for k in range(1 + passes)], i32), i32(limit - 1))
    return (
        np.array(known, i32), np.array(owner, i32), np.minimum(np.array(position, i32), i32(limit - 1)) - i32(1),
        context - i32(1), query + i32(1), last_row + each + i32(1), kept + each + i32(1), later, np.array(hidden, np.int64),
        kept, each, np.ones_like(each),
    )  # fmt: skip


@_over_arrays
def newest_tokens(
    context: Array, query: Array, returned: Array, counts: Array, pick: Array, *, passes: int, limit: int
) -> tuple[Array, ...]:
    n, i32 = context.size, np.int32
    each, picks = np.arange(n, dtype=i32), pick.tolist()
    rows: list[int] = []
    tokens: list[int] = []
    newest: list[int] = []
    for i, (end, count) in enumerate(zip((context + query).tolist(), counts.tolist(), strict=True)):
        accepted, drafts = max(count - 1, 0), [p for p in picks[i] if p >= 0]
        rows.append(n + drafts[accepted] if accepted < len(drafts) else i)
        tokens.append(int(returned[i, accepted]) if count > 0 else 0)
        newest.append(end - len(drafts) + accepted)
    after = np.minimum(np.array(newest, i32) + np.arange(1 + passes, dtype=i32)[:, None], i32(limit - 1))
    return np.array(rows, i32), np.array(tokens, i32), after, each, np.ones_like(each)


@_over_arrays
def owned_blocks(table: Array, room: Array, *, block: int, more: int) -> Array:
    n = table.shape[1]
    found = np.full((table.shape[0], n + more), SCRATCH, np.int32)
    for row, tokens in enumerate(room.tolist()):
        held = -(-tokens // block)
        found[row, : min(held, n)] = table[row, :held]
    return found


KERNELS = (
    Kernel("resolve_tokens", "numpy", resolve_tokens, batch_invariant=True),
    Kernel("history_write", "numpy-in-place", history_write, batch_invariant=True),
    Kernel("verify_drafts", "numpy", verify_drafts, batch_invariant=True),
    Kernel("draft_inputs", "numpy", draft_inputs, batch_invariant=True),
    Kernel("pair_inputs", "numpy", pair_inputs, batch_invariant=True),
    Kernel("newest_tokens", "numpy", newest_tokens, batch_invariant=True),
    Kernel("owned_blocks", "numpy", owned_blocks, batch_invariant=True),
)
