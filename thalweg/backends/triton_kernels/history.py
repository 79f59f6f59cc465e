"""The token history: ids that an earlier step sampled, and ids to keep. Writes are in place. The beginning of a step is one
launch, and so is its end."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from thalweg.backends.triton_kernels.tiles import TileSizes
from thalweg.hal.op import Kernel

BLOCK = 256


@triton.jit
def _look_up(token, history, slot, position, row, length, ok):
    """Token ids, those of the history where the host knows none."""
    at = tl.minimum(tl.maximum(position, 0), length - 1)
    known = tl.load(history + slot * row + at, mask=ok & (token == -1), other=0)
    return tl.where(token == -1, known, token)


@triton.jit
def _keep(history, slot, position, token, row, length, ok):
    """Writes tokens at [slot, position], those without a place to scratch."""
    keep = (slot != 0) & (position >= 0) & (position < length)
    place = tl.where(keep, slot * row + position, 0)
    tl.store(history + place, token, mask=ok)


@triton.jit(do_not_specialize=["n", "row", "length"])
def _resolve(tokens, history, slots, positions, out, n, row, length, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < n
    token = tl.load(tokens + i, mask=ok, other=0)
    slot = tl.load(slots + i, mask=ok, other=0).to(tl.int64)
    position = tl.load(positions + i, mask=ok, other=0)
    tl.store(out + i, _look_up(token, history, slot, position, row, length, ok), mask=ok)


@triton.jit(do_not_specialize=["n", "row", "length"])
def _write(history, slots, positions, tokens, n, row, length, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < n
    slot = tl.load(slots + i, mask=ok, other=0).to(tl.int64)
    position = tl.load(positions + i, mask=ok, other=0)
    _keep(history, slot, position, tl.load(tokens + i, mask=ok, other=0), row, length, ok)


@triton.jit(do_not_specialize=["n", "row", "length", "limit"])
def _enter(tokens, history, slots, token_seq, positions, out, places, n, row, length, limit, BLOCK: tl.constexpr):
    """limit: the largest position. No token reads a place that another of the step writes, but for scratch."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < n
    slot = tl.load(slots + tl.load(token_seq + i, mask=ok, other=0), mask=ok, other=0).to(tl.int64)
    position = tl.minimum(tl.load(positions + i, mask=ok, other=0), limit)
    token = _look_up(tl.load(tokens + i, mask=ok, other=0), history, slot, position, row, length, ok)
    tl.store(places + i, position, mask=ok)
    tl.store(out + i, token, mask=ok)
    _keep(history, slot, position, token, row, length, ok)


@triton.jit(do_not_specialize=["n", "row", "length"])
def _emit(
    history, slots, context, query, emit, tokens, most, counts, invalid, n, row, length, BLOCK: tl.constexpr
):  # fmt: skip
    """emit, invalid: bytes, 0 or 1."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < n
    emits = tl.load(emit + i, mask=ok, other=0) != 0
    slot = tl.where(emits, tl.load(slots + i, mask=ok, other=0), 0).to(tl.int64)
    position = tl.load(context + i, mask=ok, other=0) + tl.load(query + i, mask=ok, other=0)
    _keep(history, slot, position, tl.load(tokens + i, mask=ok, other=0), row, length, ok)
    tl.store(counts + i, emits.to(tl.int32), mask=ok)
    finite = tl.load(most + i, mask=ok, other=0.0) < float("inf")  # not of NaN
    tl.store(invalid + i, tl.where(finite, 0, 1).to(tl.uint8), mask=ok)


def resolve_tokens(tokens: Tensor, history: Tensor, token_slots: Tensor, positions: Tensor) -> Tensor:
    n = tokens.shape[0]
    out = torch.empty_like(tokens)
    grid = (max(1, triton.cdiv(n, BLOCK)),)
    _resolve[grid](tokens, history, token_slots, positions, out, n, history.stride(0), history.shape[1], BLOCK=BLOCK)
    return out


def history_write(history: Tensor, slots: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """In place. Several writes may go to scratch, where their order does not matter."""
    n = tokens.shape[0]
    grid = (max(1, triton.cdiv(n, BLOCK)),)
    _write[grid](history, slots, positions, tokens, n, history.stride(0), history.shape[1], BLOCK=BLOCK)
    return history


def enter_tokens(
    tokens: Tensor, history: Tensor, slots: Tensor, token_seq: Tensor, positions: Tensor, *, max_len: int
) -> tuple[Tensor, Tensor, Tensor]:
    """In place, as `history_write`."""
    n, out, places = tokens.shape[0], torch.empty_like(tokens), torch.empty_like(positions)
    _enter[(max(1, triton.cdiv(n, BLOCK)),)](
        tokens, history, slots, token_seq, positions, out, places, n, history.stride(0), history.shape[1], max_len - 1,
        BLOCK=BLOCK,
    )  # fmt: skip
    return out, places, history


def emit_tokens(
    history: Tensor, slots: Tensor, context: Tensor, query: Tensor, emit: Tensor, tokens: Tensor, most: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """In place, as `history_write`."""
    n, counts = tokens.shape[0], torch.empty_like(tokens)
    invalid = torch.empty(n, dtype=torch.bool, device=tokens.device)
    _emit[(max(1, triton.cdiv(n, BLOCK)),)](
        history, slots, context, query, emit.view(torch.uint8), tokens, most, counts, invalid.view(torch.uint8), n,
        history.stride(0), history.shape[1], BLOCK=BLOCK,
    )  # fmt: skip
    return history, counts, invalid


def kernels(t: TileSizes) -> tuple[Kernel, ...]:
    return (
        Kernel("resolve_tokens", "triton", resolve_tokens, batch_invariant=True),
        Kernel("history_write", "triton-in-place", history_write, batch_invariant=True),
        Kernel("enter_tokens", "triton-in-place", enter_tokens, batch_invariant=True),
        Kernel("emit_tokens", "triton-in-place", emit_tokens, batch_invariant=True),
    )
