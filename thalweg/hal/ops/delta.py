"""The gated delta rule (Yang et al. 2024, https://arxiv.org/abs/2412.06464), its inputs and its output. It is a recurrence over
a sequence with one state matrix per head, kept in its block of a state group."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.norm import TOLERANCES
from thalweg.hal.ops.pointwise import exponential, sigmoid, silu, softplus
from thalweg.hal.ops.ragged import Ragged, ragged_sample

EPS = 1e-6
"""Of the length of queries and keys, as the published implementations have it."""


def _gates_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    b, a = (3 * rng.normal(size=(7, 6)) for _ in range(2))
    return *(x.astype(np.float16) for x in (b, a)), *(rng.normal(size=6).astype(np.float32) for _ in range(2))


@op(samples=[Sample("7x6", _gates_sample)], tolerances={"float32": 2e-6, "bfloat16": 2e-6})
def delta_gates(b: Tensor, a: Tensor, log_rate: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The decay of each head's state, and the share that a token overwrites: b, a [T, H], log_rate, bias f32[H] ->
    (decay f32[T, H] = exp(-exp(log_rate) * softplus(a + bias)), share f32[T, H] = sigmoid(b)), all in float32."""
    step = softplus(a.to(torch.float32) + bias)
    return exponential(-torch.exp(log_rate) * step), sigmoid(b.to(torch.float32))


def _rule_sample(name: str, keys: int, values: int, key_dim: int, value_dim: int) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        rows = ragged_sample()
        tokens, shape = rows.token_seq.size, (rows.blocks, values, key_dim, value_dim)
        q, k, v = (rng.normal(size=(tokens, h, d)) for h, d in ((keys, key_dim), (keys, key_dim), (values, value_dim)))
        decay, share = (rng.uniform(0.2, 1, (tokens, values)).astype(np.float32) for _ in range(2))
        held = rng.normal(size=shape).astype(np.float32)
        return (*(x.astype(np.float16) for x in (q, k, v)), decay, share, held, *rows)

    return Sample(name, make)


@op(
    samples=[_rule_sample("2-of-2", 2, 2, 16, 24), _rule_sample("2-of-6", 2, 6, 40, 20)],
    tolerances={"float32": 1e-5, "bfloat16": 1e-2},
)
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, share: Tensor, held: Tensor, table: Tensor, context: Tensor, query: Tensor,
    last_row: Tensor, token_seq: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q, k [T, G, D], v [T, H, E], decay, share f32[T, H], held f32[blocks, H, D, E] -> (out [T, H, E], held). Heads share the
    G queries and keys in groups of H / G.

    Of each head, in float32, from one token of a sequence to the next, where q and k are divided by their lengths (of the sum
    of squares + EPS) and q by the root of D:

        S = decay S;  S = S + k (share (v - S^T k))^T;  out = S^T q

    table and the rest are those of `ops.causal_conv`: a sequence's S is read from held[table[s, 0]], or zeros where its
    context is 0, and written to held[table[s, 1]]. Tokens go in sequence, so a state has the same bits for any chunking of its
    tokens. Kernels may write in place: use the result."""
    return rule_in_place(q, k, v, decay, share, held.clone(), table, context, query, last_row, token_seq)


def _make_channel_gates(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    b, step = 3 * rng.normal(size=(7, 3)), 3 * rng.normal(size=(7, 3, 16))
    log_rate, bias = (rng.normal(size=n).astype(np.float32) for n in ((3, 1), (3, 16)))
    return b.astype(np.float16), step.astype(np.float16), log_rate, bias


@op(
    samples=[Sample("7x3x16", _make_channel_gates), Sample("7x3x16-floor", _make_channel_gates, {"floor": -5.0})],
    tolerances={"float32": 2e-6, "bfloat16": 2e-6},
)
def channel_delta_gates(
    b: Tensor, step: Tensor, log_rate: Tensor, bias: Tensor, *, floor: float = 0.0
) -> tuple[Tensor, Tensor]:
    """`delta_gates` with a rate of decay per channel: b [T, H], step [T, H, D], log_rate f32[H, 1], bias
    f32[H, D] -> (decay f32[T, H, D], share f32[T, H]). floor: below 0, the decay's logarithm is
    floor * sigmoid(exp(log_rate) * (step + bias)) instead, which it never falls under."""
    rate, moved = torch.exp(log_rate), step.to(torch.float32) + bias
    log_decay = floor * sigmoid(rate * moved) if floor else -rate * softplus(moved)
    return exponential(log_decay), sigmoid(b.to(torch.float32))


def _channel_rule_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    q, k, v, decay, share, *rest = _rule_sample("", 3, 3, 16, 16).make(rng)
    return q, k, v, (decay[..., None] * rng.uniform(0.2, 1, (*decay.shape, 16))).astype(np.float32), share, *rest


@op(samples=[Sample("3-of-3", _channel_rule_sample)], tolerances={"float32": 1e-5, "bfloat16": 1e-2})
def channel_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, share: Tensor, held: Tensor, table: Tensor, context: Tensor, query: Tensor,
    last_row: Tensor, token_seq: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`delta_rule` with a rate of decay per row of a state (Kimi Team 2025, https://arxiv.org/abs/2510.26692):
    decay f32[T, H, D], the rest as there."""
    return rule_in_place(q, k, v, decay, share, held.clone(), table, context, query, last_row, token_seq)


def rule_in_place(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, share: Tensor, held: Tensor, *batch: Tensor
) -> tuple[Tensor, Tensor]:
    """`delta_rule`, or with a decay of each channel `channel_delta_rule`, writing to `held`. A block is read before its
    sequence's first token, and then only that sequence writes it. batch: the last five arguments of the op."""
    rows = Ragged(*batch)
    groups = v.shape[1] // q.shape[1]
    q, k = (_unit(x).repeat_interleave(groups, dim=1).unsqueeze(-1) for x in (q, k))
    q = q * k.shape[2] ** -0.5
    wide, out = v.to(torch.float32), []
    begins, fresh, source, target = rows.offset == 0, rows.fresh[rows.seq], rows.read[rows.seq], rows.write[rows.seq]
    state = torch.zeros(held.shape[1:], dtype=held.dtype, device=held.device)
    for t in range(v.shape[0]):
        start = torch.where(fresh[t], torch.zeros_like(state), held.index_select(0, source[t : t + 1])[0])
        state = torch.where(begins[t], start, state) * decay[t].reshape(decay.shape[1], -1, 1)
        seen = (state * k[t]).sum(1)
        state = state + k[t] * (share[t, :, None] * (wide[t] - seen)).unsqueeze(1)
        out.append((state * q[t]).sum(1))
        held.index_copy_(0, target[t : t + 1], state.unsqueeze(0))
    return torch.stack(out).to(v.dtype), held


def _unit(x: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    return wide * torch.rsqrt((wide * wide).sum(-1, keepdim=True) + EPS)


def _gated_norm_sample(*shape: int) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        x, gate = (rng.normal(size=shape).astype(np.float16) for _ in range(2))
        return x, gate, (1 + 0.1 * rng.normal(size=shape[-1])).astype(np.float16)

    return Sample("x".join(map(str, shape)), make, {"eps": 1e-6})


@op(samples=[_gated_norm_sample(1, 64), _gated_norm_sample(5, 4, 32)], tolerances=TOLERANCES)
def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """`ops.rms_norm` of x, times silu(gate), in float32 and cast last: x, gate [..., H], weight [H] -> [..., H]."""
    wide = x.to(torch.float32)
    scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    normed = weight * (wide * scale).to(x.dtype)
    return (normed * silu(gate.to(torch.float32))).to(x.dtype)
