"""Changes to logits before sampling: penalties, banned words, biases, masks. The given logits are left as they are, for log
probabilities later."""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from thalweg.backends.triton_kernels.tiles import TileSizes, VocabTiles
from thalweg.hal.op import Kernel

COUNT = 1024
"""History positions counted by one program."""


@triton.jit(do_not_specialize=["row"])
def _count(history, slots, lengths, prompt_len, counts, row, vocab, BLOCK: tl.constexpr):
    """counts u32[S, V]: how often each id is in the output. The top bit says that it is in the prompt."""
    s = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    length = tl.load(lengths + s)
    if tl.program_id(1) * BLOCK >= length:
        return
    slot = tl.load(slots + s).to(tl.int64)
    known = (i < length) & (i < row)
    token = tl.load(history + slot * row + i, mask=known, other=0)
    token = tl.minimum(tl.maximum(token, 0), vocab - 1)
    output = i >= tl.load(prompt_len + s)
    tl.atomic_add(counts + s * vocab + token, 1, mask=known & output, sem="relaxed")
    tl.atomic_or(counts + s * vocab + token, -2147483648, mask=known & (i < tl.load(prompt_len + s)), sem="relaxed")


@triton.jit
def _penalise(logits, counts, repetition, presence, frequency, out, row, vocab, BLOCK: tl.constexpr):
    s = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = i < vocab
    x = tl.load(logits + s * row + i, mask=ok, other=0.0)
    word = tl.load(counts + s * vocab + i, mask=ok, other=0)
    times = (word & 0x7FFFFFFF).to(tl.float32)
    scale = tl.where(word != 0, tl.load(repetition + s), 1.0)
    x = tl.where(x > 0, x / scale, x * scale)
    x = x - tl.load(frequency + s) * times
    x = x - tl.where(times > 0, tl.load(presence + s), 0.0)
    tl.store(out + s * vocab + i, x, mask=ok)


@triton.jit(do_not_specialize=["row", "width"])
def _ban(out, history, slots, lengths, bad_row, bad_words, row, vocab, width, BLOCK: tl.constexpr):
    """One word: its last token becomes -inf if the sequence ends with those before it."""
    w = tl.program_id(0)
    j = tl.arange(0, BLOCK)
    s = tl.load(bad_row + w).to(tl.int64)
    want = tl.load(bad_words + w * width + j, mask=j < width - 1, other=-1)
    last = tl.load(bad_words + w * width + width - 1)
    at = tl.load(lengths + s) + j - (width - 1)
    slot = tl.load(slots + s).to(tl.int64)
    there = tl.load(history + slot * row + at, mask=(want >= 0) & (at >= 0) & (at < row), other=-1)
    miss = (want >= 0) & (there != want)
    if tl.sum(miss.to(tl.int32)) == 0 and last >= 0:
        tl.store(out + s * vocab + last, float("-inf"))


@triton.jit(do_not_specialize=["n"])
def _bias(out, rows, tokens, values, n, vocab, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < n
    place = tl.load(rows + i, mask=ok, other=0).to(tl.int64) * vocab + tl.load(tokens + i, mask=ok, other=0)
    tl.atomic_add(out + place, tl.load(values + i, mask=ok, other=0.0), mask=ok, sem="relaxed")


@triton.jit
def _mask(logits, mask, out, row, words, vocab, BLOCK: tl.constexpr):
    s = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = i < vocab
    word = tl.load(mask + s * words + i // 32, mask=ok, other=0)
    x = tl.load(logits + s * row + i, mask=ok, other=0.0)
    tl.store(out + s * vocab + i, tl.where((word >> (i % 32)) & 1 != 0, x, float("-inf")), mask=ok)


def penalties(
    t: VocabTiles, logits: Tensor, history: Tensor, slots: Tensor, lengths: Tensor, prompt_len: Tensor, repetition: Tensor,
    presence: Tensor, frequency: Tensor,
) -> Tensor:  # fmt: skip
    """Integer counts first, then one pass over the logits: no order of additions to depend on."""
    seqs, vocab = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    counts = torch.zeros((seqs, vocab), dtype=torch.int32, device=logits.device)
    out = torch.empty((seqs, vocab), dtype=logits.dtype, device=logits.device)
    _count[(seqs, triton.cdiv(history.shape[1], COUNT))](
        history, slots, lengths, prompt_len, counts, history.shape[1], vocab, BLOCK=COUNT, num_warps=4
    )
    _penalise[(seqs, triton.cdiv(vocab, t.block))](
        logits, counts, repetition, presence, frequency, out, logits.stride(0), vocab, BLOCK=t.block, num_warps=t.warps
    )
    return out


def bad_words(
    logits: Tensor, history: Tensor, slots: Tensor, lengths: Tensor, bad_row: Tensor, bad_words: Tensor
) -> Tensor:  # fmt: skip
    words, width = bad_words.shape
    out = logits.clone(memory_format=torch.contiguous_format)
    if words:
        _ban[(words,)](
            out, history, slots, lengths, bad_row, bad_words, history.shape[1], logits.shape[1], width,
            BLOCK=triton.next_power_of_2(width), num_warps=1,
        )  # fmt: skip
    return out


def logit_bias(logits: Tensor, row: Tensor, token: Tensor, value: Tensor) -> Tensor:
    """Equal entries are added in any order. The engine sends at most one value and a ban per token, and their sum has no
    order."""
    out = logits.clone(memory_format=torch.contiguous_format)
    n = row.shape[0]
    if n:
        _bias[(triton.cdiv(n, 128),)](out, row, token, value, n, logits.shape[1], BLOCK=128, num_warps=4)
    return out


def token_mask(t: VocabTiles, logits: Tensor, mask: Tensor) -> Tensor:
    seqs, vocab = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    out = torch.empty((seqs, vocab), dtype=logits.dtype, device=logits.device)
    _mask[(seqs, triton.cdiv(vocab, t.block))](
        logits, mask, out, logits.stride(0), mask.stride(0), vocab, BLOCK=t.block, num_warps=t.warps
    )
    return out


def kernels(t: TileSizes) -> tuple[Kernel, ...]:
    part = functools.partial
    return (
        Kernel("penalties", "triton", part(penalties, t.vocab), batch_invariant=True),
        Kernel("bad_words", "triton", bad_words, batch_invariant=True),
        Kernel("logit_bias", "triton", logit_bias, batch_invariant=True),
        Kernel("token_mask", "triton", part(token_mask, t.vocab), batch_invariant=True),
    )
