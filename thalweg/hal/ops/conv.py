"""Short causal convolutions over a sequence. Its last inputs are kept in its block of a state group."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.activation import activate
from thalweg.hal.ops.ragged import Ragged, ragged_sample

NONE = "none"
"""No activation."""


def _sample(name: str, channels: int, kernel: int, act: str = "silu", biased: bool = False) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        rows = ragged_sample()
        x, weight = rng.normal(size=(rows[-1].size, channels)), rng.normal(size=(channels, 1, kernel)) / kernel**0.5
        held = rng.normal(size=(rows.blocks, kernel - 1, channels))
        bias = [rng.normal(size=channels).astype(np.float16)] if biased else []
        return (*(a.astype(np.float16) for a in (x, weight, held)), *rows, *bias)

    return Sample(name, make, {"act": act} | ({"biased": True} if biased else {}))


@op(
    samples=[_sample("4-taps", 96, 4), _sample("2-taps", 64, 2), _sample("biased", 80, 4, biased=True),
             _sample("3-taps-alone", 48, 3, NONE)],
    tolerances={"float32": 2e-6, "bfloat16": 1e-2},
)  # fmt: skip
def causal_conv(
    x: Tensor, weight: Tensor, held: Tensor, table: Tensor, context: Tensor, query: Tensor, last_row: Tensor,
    token_seq: Tensor, bias: Tensor | None = None, *, act: str = "silu",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A causal convolution of each channel by itself: x [T, C], weight [C, 1, K], held [blocks, K - 1, C], bias [C] ->
    (y [T, C], held).

    y[t, c] = act(bias[c] + weight[c, 0, K - 1] x[t, c] + weight[c, 0, K - 2] x[t - 1, c] + ...), of one sequence, summed in
    float32 in that order and rounded before act, which is named as `ops.activation` does, or "none". `held` has the inputs
    before the batch: the last K - 1, oldest first, and zeros before a sequence's first token. Facts at bind: dtype, and biased,
    where there is a bias.

    table i32[S, >= 2], context, query, last_row i32[S], token_seq i32[T]: as in a StepBatch. A sequence reads block
    table[s, 0], unless its context is 0, and writes its last K - 1 inputs to table[s, 1]. Kernels may write in place: use the
    result."""
    y, write, kept = convolve(x, weight, held, table, context, query, last_row, token_seq, bias=bias, act=act)
    return y, held.index_put((write,), kept)


def convolve(
    x: Tensor, weight: Tensor, held: Tensor, *batch: Tensor, bias: Tensor | None, act: str
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, the blocks to write i64[S], their new values [S, K - 1, C]). batch: five arguments of the op."""
    rows, taps = Ragged(*batch), weight.shape[2]
    before, each = rows.start(held), torch.arange(batch[0].shape[0], device=x.device)
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    if bias is not None:
        total = total + bias.to(torch.float32)
    for back in range(taps):
        at = rows.offset - back
        earlier = before[rows.seq, (at + taps - 1).clamp(0, taps - 2)]
        value = torch.where((at >= 0)[:, None], x[(rows.rows - back).clamp(min=0)], earlier)
        total = total + value.to(torch.float32) * weight[:, 0, taps - 1 - back].to(torch.float32)
    kept = []
    for ago in range(taps - 1, 0, -1):  # the input that was the `ago`-th last
        at = rows.query - ago
        new = x[(rows.last - ago + 1).clamp(min=0)]
        kept.append(torch.where((at >= 0)[:, None], new, before[each, (at + taps - 1).clamp(0, taps - 2)]))
    y = total.to(x.dtype)
    return y if act == NONE else activate(y, act), rows.write, torch.stack(kept, 1)
