"""State-space models with steps that depend on their input: Mamba (Gu and Dao 2023, https://arxiv.org/abs/2312.00752) and
Mamba-2 (Dao and Gu 2024, https://arxiv.org/abs/2405.21060). Recurrences over a sequence with the state in its block of a state
group, and the norm after Mamba-2's."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.norm import TOLERANCES
from thalweg.hal.ops.pointwise import exponential, silu, softplus
from thalweg.hal.ops.ragged import Ragged, ragged_sample


def steps(step: Tensor, bias: Tensor, low: float = 0.0, high: float = float("inf")) -> Tensor:
    """How far each step goes, in float32: softplus of step [T, N] + bias f32[N], kept within low and high."""
    return softplus(step.to(torch.float32) + bias).clamp(low, high)


def _scan_sample(name: str, channels: int, size: int) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        rows = ragged_sample()
        tokens = rows.token_seq.size
        x, step, gate = (rng.normal(size=(tokens, channels)) for _ in range(3))
        b, c = (rng.normal(size=(tokens, size)) for _ in range(2))
        rate, bias, skip = rng.uniform(-3, 0.5, (channels, size)), rng.normal(size=channels), rng.normal(size=channels)
        held = rng.normal(size=(rows.blocks, size, channels))
        return (
            *(a.astype(np.float16) for a in (x, step, b, c, gate)), *(a.astype(np.float32) for a in (rate, bias, skip, held)),
            *rows,
        )  # fmt: skip

    return Sample(name, make)


@op(
    samples=[_scan_sample("96-of-16", 96, 16), _scan_sample("50-of-5", 50, 5)],
    tolerances={"float32": 1e-5, "bfloat16": 1e-2},
)
def selective_scan(
    x: Tensor, step: Tensor, b: Tensor, c: Tensor, gate: Tensor, log_rate: Tensor, bias: Tensor, skip: Tensor, held: Tensor,
    table: Tensor, context: Tensor, query: Tensor, last_row: Tensor, token_seq: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mamba's recurrence: x, step, gate [T, C], b, c [T, N], log_rate f32[C, N], bias, skip f32[C], held f32[blocks, N, C] ->
    (out [T, C], held).

    Of each channel, in float32, from one token of a sequence to the next, with d = softplus(step + bias):

        S = exp(-exp(log_rate) d) S + b (d x);  out = (S . c + skip x) silu(gate)

    table and the rest are those of `ops.causal_conv`: a sequence's S is read from held[table[s, 0]], or zeros where its
    context is 0, and written to held[table[s, 1]]. Tokens go in sequence, so a state has the same bits for any chunking of its
    tokens. Kernels may write in place: use the result."""
    return scan_in_place(
        x, step, b, c, gate, log_rate, bias, skip, held.clone(), table, context, query, last_row, token_seq
    )  # fmt: skip


def scan_in_place(
    x: Tensor, step: Tensor, b: Tensor, c: Tensor, gate: Tensor, log_rate: Tensor, bias: Tensor, skip: Tensor, held: Tensor,
    *batch: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same, writing to `held`. batch: the last five arguments of the op."""
    far, wide = steps(step, bias), x.to(torch.float32)
    more, rate = far * wide, -torch.exp(log_rate).T
    b, c = (t.to(torch.float32).unsqueeze(-1) for t in (b, c))
    out, walk = [], StateWalk(held, *batch)
    for t in range(x.shape[0]):
        state = walk.enter(t) * exponential(rate * far[t]) + b[t] * more[t]
        out.append((state * c[t]).sum(0))
        walk.leave(t, state)
    result = (torch.stack(out) + skip * wide) * silu(gate.to(torch.float32))
    return result.to(x.dtype), held


def _ssd_sample(name: str, groups: int, heads: int, width: int, size: int, **limits: float) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        rows = ragged_sample()
        tokens = rows.token_seq.size
        x, step = rng.normal(size=(tokens, heads, width)), rng.normal(size=(tokens, heads))
        b, c = (rng.normal(size=(tokens, groups, size)) for _ in range(2))
        rate, bias, skip = rng.uniform(-3, 0.5, heads), rng.normal(size=heads), rng.normal(size=heads)
        held = rng.normal(size=(rows.blocks, heads, size, width))
        return (
            *(a.astype(np.float16) for a in (x, step, b, c)), *(a.astype(np.float32) for a in (rate, bias, skip, held)), *rows
        )  # fmt: skip

    return Sample(name, make, limits)


@op(
    samples=[_ssd_sample("2-of-6", 2, 6, 24, 16), _ssd_sample("1-of-3", 1, 3, 20, 40, low=0.3, high=1.5)],
    tolerances={"float32": 1e-5, "bfloat16": 1e-2},
)
def ssd_scan(
    x: Tensor, step: Tensor, b: Tensor, c: Tensor, log_rate: Tensor, bias: Tensor, skip: Tensor, held: Tensor, table: Tensor,
    context: Tensor, query: Tensor, last_row: Tensor, token_seq: Tensor, *, low: float = 0.0, high: float = float("inf"),
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mamba-2's recurrence (state-space duality): x [T, H, P], step [T, H], b, c [T, G, N], log_rate, bias, skip f32[H], held
    f32[blocks, H, N, P] -> (out [T, H, P], held). Heads share the G rows of b and c in groups of H / G.

    Of each head, in float32, with d = softplus(step + bias) kept within low and high:

        S = exp(-exp(log_rate) d) S + b (d x)^T;  out = S^T c + skip x

    The state is kept as that of `ops.selective_scan`, with the same promise. Kernels may write in place: use the result."""
    return ssd_in_place(
        x, step, b, c, log_rate, bias, skip, held.clone(), table, context, query, last_row, token_seq, low=low, high=high
    )  # fmt: skip


def ssd_in_place(
    x: Tensor, step: Tensor, b: Tensor, c: Tensor, log_rate: Tensor, bias: Tensor, skip: Tensor, held: Tensor, *batch: Tensor,
    low: float = 0.0, high: float = float("inf"),
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same, writing to `held`. batch: the last five arguments of the op."""
    far, decay = ssd_steps(step, log_rate, bias, low, high)
    wide = x.to(torch.float32)
    more, groups = far.unsqueeze(-1) * wide, x.shape[1] // b.shape[1]
    b, c = (t.to(torch.float32).repeat_interleave(groups, dim=1).unsqueeze(-1) for t in (b, c))
    out, walk = [], StateWalk(held, *batch)
    for t in range(x.shape[0]):
        state = walk.enter(t) * decay[t, :, None, None] + b[t] * more[t].unsqueeze(1)
        out.append((state * c[t]).sum(1))
        walk.leave(t, state)
    result = torch.stack(out) + skip.unsqueeze(-1) * wide
    return result.to(x.dtype), held


def ssd_steps(step: Tensor, log_rate: Tensor, bias: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """(d f32[T, H], the factor of each head's state f32[T, H])."""
    far = steps(step, bias, low, high)
    return far, exponential(-torch.exp(log_rate) * far)


class StateWalk:
    """From a token's state to the next one's. A block is read before its sequence's first token, and then only that sequence
    writes it. The state is written after each token, so the next one reads it from there."""

    def __init__(self, held: Tensor, *batch: Tensor) -> None:
        rows = Ragged(*batch)
        begins, target = rows.offset == 0, rows.write[rows.seq]
        self._held, self._zero = held, torch.zeros((), dtype=held.dtype, device=held.device)
        self._fresh = begins & rows.fresh[rows.seq]
        self._source, self._target = torch.where(begins, rows.read[rows.seq], target), target

    def enter(self, t: int) -> Tensor:
        """The state before token t."""
        return torch.where(self._fresh[t], self._zero, self._held.index_select(0, self._source[t : t + 1])[0])

    def leave(self, t: int, state: Tensor) -> None:
        self._held.index_copy_(0, self._target[t : t + 1], state.unsqueeze(0))


def _linear_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    rows = ragged_sample()
    tokens, shape = rows.token_seq.size, (rows.blocks, 1, 40)
    x, decay, held = rng.normal(size=(tokens, 40)), rng.uniform(0.2, 1, (tokens, 40)), rng.normal(size=shape)
    return *(a.astype(np.float32) for a in (x, decay, held)), *rows


@op(samples=[Sample("40", _linear_sample)], tolerances={"float32": 1e-6})
def linear_scan(
    x: Tensor, decay: Tensor, held: Tensor, table: Tensor, context: Tensor, query: Tensor, last_row: Tensor, token_seq: Tensor
) -> tuple[Tensor, Tensor]:
    """A linear recurrence of each channel (De et al. 2024, https://arxiv.org/abs/2402.19427): x, decay f32[T, C], held
    f32[blocks, 1, C] -> (out f32[T, C], held), where S = decay S + x, and out is S. The state is kept as that of
    `ops.selective_scan`, with the same promise. Kernels may write in place: use the result."""
    return linear_in_place(x, decay, held.clone(), table, context, query, last_row, token_seq)


def linear_in_place(x: Tensor, decay: Tensor, held: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
    """`linear_scan`, writing to `held`. batch: the last five arguments of the op."""
    out, walk = [], StateWalk(held, *batch)
    for t in range(x.shape[0]):
        state = walk.enter(t) * decay[t] + x[t]
        out.append(state[0])
        walk.leave(t, state)
    return torch.stack(out), held


def _norm_sample(name: str, *shape: int, **static: object) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        x, gate = (rng.normal(size=shape).astype(np.float16) for _ in range(2))
        return x, gate, (1 + 0.1 * rng.normal(size=shape[-1])).astype(np.float16)

    return Sample(name, make, {"eps": 1e-5, "groups": 1} | static)


@op(
    samples=[_norm_sample("1x64", 1, 64), _norm_sample("7x96-of-3", 7, 96, groups=3),
             _norm_sample("5x64-norm-first", 5, 64, groups=2, norm_first=True)],
    tolerances=TOLERANCES,
)  # fmt: skip
def gated_group_norm(x: Tensor, gate: Tensor, weight: Tensor, *, groups: int, eps: float, norm_first: bool = False) -> Tensor:
    """The root-mean-square norm of x silu(gate), of each of so many groups of neighbours by itself, times weight: x, gate
    [..., H], weight [H] -> [..., H]. In float32, rounded before the weight.

    norm_first: the norm of x times weight, and then times silu(gate), rounded last."""
    wide, by = x.to(torch.float32), silu(gate.to(torch.float32))
    wide = (wide if norm_first else wide * by).reshape(*x.shape[:-1], groups, -1)
    normed: Tensor = (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)).flatten(-2)
    if norm_first:
        normed = weight.to(torch.float32) * normed * by
        return normed.to(x.dtype)
    normed = weight * normed.to(x.dtype)
    return normed
