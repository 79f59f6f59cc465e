"""Recurrent state in compiled code, at every instruction set: the op's results, and the same bits however tokens are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from thalweg.backends.cpu.native import Library
from thalweg.backends.cpu.native.recurrence import kernels
from thalweg.hal import ops
from thalweg.hal.op import Op
from thalweg.hal.testing import cases

I32 = torch.int32
KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def rows(query: list[int], context: list[int], blocks: list[tuple[int, int]]) -> tuple[torch.Tensor, ...]:
    counts = torch.tensor(query, dtype=I32)
    return (
        torch.tensor(blocks, dtype=I32), torch.tensor(context, dtype=I32), counts, counts.cumsum(0, dtype=I32) - 1,
        torch.arange(len(query), dtype=I32).repeat_interleave(counts),
    )  # fmt: skip


def inputs(op: Op, tokens: int, kind: torch.dtype, blocks: int = 4) -> list[torch.Tensor]:
    """Arguments before those of the batch, of sizes that are no multiple of a vector or a task's share."""
    g = torch.Generator().manual_seed(tokens)

    def draw(*shape: int, as_: torch.dtype = kind) -> torch.Tensor:
        return torch.randn(*shape, generator=g).to(as_)

    if op is ops.causal_conv:
        return [draw(tokens, 300), draw(300, 1, 4), draw(blocks, 3, 300)]
    q, k, v = draw(tokens, 2, 72), draw(tokens, 2, 72), draw(tokens, 6, 75)
    decay, share = torch.rand(tokens, 6, generator=g), torch.rand(tokens, 6, generator=g)
    return [q, k, v, decay, share, draw(blocks, 6, 72, 75, as_=torch.float32)]


def called(library: Library, op: Op) -> Any:
    (kernel,) = (k for k in kernels(library) if k.op == op.name)
    return kernel.run


@pytest.mark.parametrize("dtype", sorted(KINDS))
@pytest.mark.parametrize("op", [ops.causal_conv, ops.delta_rule], ids=lambda op: op.name)
def test_results_are_the_bodys_and_other_blocks_stay(library: Library, op: Op, dtype: str) -> None:
    batch = rows([1, 40, 0, 2, 5], [9, 4, 3, 7, 0], [(1, 1), (2, 3), (0, 0), (4, 4), (5, 5)])
    args = inputs(op, 48, KINDS[dtype], blocks=8)
    at = 2 if op is ops.causal_conv else 5
    want, kept = op.reference(*args, *batch)
    mine = [*args[:at], args[at].clone(), *args[at + 1 :]]
    got, held = called(library, op)(*mine, *batch)
    assert held.data_ptr() == mine[at].data_ptr()
    allowed = op.tolerances[dtype]
    assert cases.difference(got.float().numpy(), want.float().numpy()) <= allowed
    assert cases.difference(held[1:].float().numpy(), kept[1:].float().numpy()) <= allowed
    for block in (2, 6, 7):  # a snapshot that is read, and blocks that nobody names
        assert torch.equal(held[block], args[at][block])


@pytest.mark.parametrize("dtype", sorted(KINDS))
@pytest.mark.parametrize("op", [ops.causal_conv, ops.delta_rule], ids=lambda op: op.name)
def test_a_sequence_in_steps_of_any_length_has_the_same_bits(library: Library, op: Op, dtype: str) -> None:
    tokens, run = 37, called(library, op)
    args = inputs(op, tokens, KINDS[dtype])
    at = 2 if op is ops.causal_conv else 5
    per_token = (0,) if op is ops.causal_conv else (0, 1, 2, 3, 4)
    found = []
    for cuts in ([37], [1] * 37, [16, 1, 20], [2, 35]):
        held, out, done = torch.full_like(args[at], float("nan")), [], 0
        for step, n in enumerate(cuts):
            mine = [a[done : done + n] if i in per_token else held if i == at else a for i, a in enumerate(args)]
            out.append(run(*mine, *rows([n], [done], [(1 + step % 2, 1 + (step + 1) % 2)]))[0])
            done += n
        found.append((torch.cat(out), held[1 + len(cuts) % 2]))
    for y, state in found[1:]:
        np.testing.assert_array_equal(y.float().numpy(), found[0][0].float().numpy())
        np.testing.assert_array_equal(state.float().numpy(), found[0][1].float().numpy())


def test_what_it_does_not_run_is_refused_in_words(library: Library) -> None:
    conv, rule = (k.supports for k in kernels(library))
    assert conv({"dtype": "float32", "act": "gelu", "taps": 4}) == "runs silu after at most 8 taps, not gelu after 4"
    assert conv({"dtype": "float16", "taps": 4}) == "runs bfloat16 and float32, not float16"
    assert rule({"dtype": "float32", "key_dim": 512}) == "queries have at most 256 values, not 512"
    assert rule({"dtype": "bfloat16", "key_dim": 128}) is None
