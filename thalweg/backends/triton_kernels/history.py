"""The token history: ids that an earlier step sampled, and ids to keep. Writes are in place."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from thalweg.backends.triton_kernels.tiles import TileSizes
from thalweg.hal.op import Kernel

BLOCK = 256


@triton.jit(do_not_specialize=["n", "row", "length"])
def _resolve(tokens, history, slots, positions, out, n, row, length, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < n
    token = tl.load(tokens + i, mask=ok, other=0)
    slot = tl.load(slots + i, mask=ok, other=0).to(tl.int64)
    position = tl.minimum(tl.maximum(tl.load(positions + i, mask=ok, other=0), 0), length - 1)
    known = tl.load(history + slot * row + position, mask=ok & (token == -1), other=0)
    tl.store(out + i, tl.where(token == -1, known, token), mask=ok)


@triton.jit(do_not_specialize=["n", "row", "length"])
def _write(history, slots, positions, tokens, n, row, length, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < n
    slot = tl.load(slots + i, mask=ok, other=0).to(tl.int64)
    position = tl.load(positions + i, mask=ok, other=0)
    keep = (slot != 0) & (position >= 0) & (position < length)
    place = tl.where(keep, slot * row + position, 0)
    tl.store(history + place, tl.load(tokens + i, mask=ok, other=0), mask=ok)


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


def kernels(t: TileSizes) -> tuple[Kernel, ...]:
    return (
        Kernel("resolve_tokens", "triton", resolve_tokens, batch_invariant=True),
        Kernel("history_write", "triton-in-place", history_write, batch_invariant=True),
    )
