"""Recurrent state in compiled code, at every instruction set: the op's results, and the same bits however tokens are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from thalweg.backends.cpu.native import NativeLibrary
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

    wide = torch.float32
    if op is ops.causal_conv:
        return [draw(tokens, 300), draw(300, 1, 4), draw(blocks, 3, 300)]
    if op is ops.selective_scan:
        x, step, gate, b, c = (draw(tokens, n) for n in (150, 150, 150, 13, 13))
        rate, bias, skip = torch.rand(150, 13, generator=g) * 4 - 3, draw(150, as_=wide), draw(150, as_=wide)
        return [x, 8 * step, b, c, gate, rate, bias, skip, draw(blocks, 13, 150, as_=wide)]
    if op is ops.ssd_scan:
        both = draw(tokens, 2 * 2 * 37).split((2 * 37, 2 * 37), dim=1)  # side by side, as a projection gives them
        b, c = (t.unflatten(1, (2, 37)) for t in both)
        rate, bias, skip = torch.rand(6, generator=g) * 4 - 3, draw(6, as_=wide), draw(6, as_=wide)
        return [draw(tokens, 6, 75), draw(tokens, 6), b, c, rate, bias, skip, draw(blocks, 6, 37, 75, as_=wide)]
    if op is ops.channel_delta_rule:
        q, k, v = draw(tokens, 6, 72), draw(tokens, 6, 72), draw(tokens, 6, 75)
        decay, share = torch.rand(tokens, 6, 72, generator=g), torch.rand(tokens, 6, generator=g)
        return [q, k, v, decay, share, draw(blocks, 6, 72, 75, as_=wide)]
    q, k, v = draw(tokens, 2, 72), draw(tokens, 2, 72), draw(tokens, 6, 75)
    decay, share = torch.rand(tokens, 6, generator=g), torch.rand(tokens, 6, generator=g)
    return [q, k, v, decay, share, draw(blocks, 6, 72, 75, as_=torch.float32)]


OPS = {
    ops.causal_conv.name: 2, ops.delta_rule.name: 5, ops.channel_delta_rule.name: 5, ops.selective_scan.name: 8,
    ops.ssd_scan.name: 7,
}  # fmt: skip
"""And which argument of each is its cache."""


def called(library: NativeLibrary, op: Op) -> Any:
    (kernel,) = (k for k in kernels(library) if k.op == op.name)
    return kernel.run


@pytest.mark.parametrize("dtype", sorted(KINDS))
@pytest.mark.parametrize("name", OPS)
def test_results_are_the_bodys_and_other_blocks_stay(library: NativeLibrary, name: str, dtype: str) -> None:
    op, at = ops.all_ops()[name], OPS[name]
    batch = rows([1, 40, 0, 2, 5], [9, 4, 3, 7, 0], [(1, 1), (2, 3), (0, 0), (4, 4), (5, 5)])
    args = inputs(op, 48, KINDS[dtype], blocks=8)
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
@pytest.mark.parametrize("name", OPS)
def test_a_sequence_in_steps_of_any_length_has_the_same_bits(library: NativeLibrary, name: str, dtype: str) -> None:
    op, at, tokens = ops.all_ops()[name], OPS[name], 37
    run, args = called(library, op), inputs(op, tokens, KINDS[dtype])
    per_token = [i for i, a in enumerate(args[:at]) if len(a) == tokens]
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


def test_what_it_does_not_run_is_refused_in_words(library: NativeLibrary) -> None:
    conv, rule, each, scan, _ = (k.supports for k in kernels(library))
    assert conv({"dtype": "float32", "act": "gelu", "taps": 4}) == "runs silu or none after at most 8 taps, not gelu after 4"
    assert scan({"dtype": "float32", "state": 300}) == "keeps at most 256 numbers of a channel, not 300"
    assert conv({"dtype": "float16", "taps": 4}) == "runs bfloat16 and float32, not float16"
    assert rule({"dtype": "float32", "key_dim": 512}) == "queries have at most 256 values, not 512"
    assert each({"dtype": "float32", "size": 512}) == rule({"dtype": "float32", "key_dim": 512})
    assert rule({"dtype": "bfloat16", "key_dim": 128}) is None


@pytest.mark.parametrize("dtype", sorted(KINDS))
def test_a_convolution_adds_its_bias_and_may_end_there(library: NativeLibrary, dtype: str) -> None:
    x, weight, held = inputs(ops.causal_conv, 9, KINDS[dtype])
    bias, batch = torch.linspace(-2, 2, 300).to(KINDS[dtype]), rows([4, 5], [0, 3], [(1, 1), (2, 2)])
    for act in ("silu", "none"):
        want, _ = ops.causal_conv.reference(x, weight, held, *batch, bias, act=act)
        got, _ = called(library, ops.causal_conv)(x, weight, held.clone(), *batch, bias, act=act)
        assert cases.difference(got.float().numpy(), want.float().numpy()) <= ops.causal_conv.tolerances[dtype]


def test_steps_are_as_small_and_as_large_as_they_come(library: NativeLibrary) -> None:
    """Of one token without history, where what is written is the step: nothing is lost near 0, and nothing overflows."""
    steps = torch.tensor([[-90.0, -30, -12, -3, -0.1, 0, 0.1, 3, 19.9, 20.1, 90, 300]])
    one, channels = torch.ones(1, 12), 12
    args = [one, steps, torch.ones(1, 1), torch.ones(1, 1), 50 * one, torch.zeros(channels, 1), *torch.zeros(2, channels)]
    batch = rows([1], [0], [(1, 1)])
    (want, _), (got, held) = (
        run(*args, torch.zeros(2, 1, channels), *batch)
        for run in (ops.selective_scan.reference, called(library, ops.selective_scan))
    )
    np.testing.assert_allclose(held[1, 0], torch.nn.functional.softplus(steps[0]), rtol=2e-6, atol=1e-37)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-36)
