"""Compiled norms, activations and rotary positions against the ops' bodies, at every instruction set and at
widths that are no multiple of a vector."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thalweg.backends.cpu.native import NativeLibrary
from thalweg.backends.cpu.native.rows import kernels
from thalweg.hal import ops

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}
both = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])


def kernel(library: NativeLibrary, name: str) -> Any:
    return next(k.run for k in kernels(library) if k.op == name)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    assert (got.float() - want.float()).abs().max() <= TOLERANCE[got.dtype] * want.float().abs().max()


@both
@pytest.mark.parametrize("width", [1, 15, 64, 100, 1031])
def test_norms(library: NativeLibrary, dtype: torch.dtype, width: int) -> None:
    x, residual, weight = torch.randn(9, width).to(dtype), torch.randn(9, width).to(dtype), torch.randn(width).to(dtype)
    close(kernel(library, "rms_norm")(x, weight, eps=1e-6), ops.rms_norm.reference(x, weight, eps=1e-6))
    got = kernel(library, "add_rms_norm")(x, residual, weight, eps=1e-6)
    want = ops.add_rms_norm.reference(x, residual, weight, eps=1e-6)
    close(got[0], want[0])
    assert torch.equal(got[1], want[1])
    with pytest.raises(ValueError, match="does not fit"):
        kernel(library, "rms_norm")(x, weight[:-1], eps=1e-6)


@both
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
def test_norms_of_groups_with_a_gate_that_lies_in_a_wider_row(library, dtype, groups, norm_first) -> None:
    x, weight = torch.randn(7, 111).to(dtype), torch.randn(111).to(dtype)
    gate = (3 * torch.randn(7, 300)).to(dtype)[:, 40:151]
    said = {"groups": groups, "eps": 1e-5, "norm_first": norm_first}
    close(kernel(library, "gated_group_norm")(x, gate, weight, **said), ops.gated_group_norm.reference(x, gate, weight, **said))
    with pytest.raises(ValueError, match="does not fit"):
        kernel(library, "gated_group_norm")(x, gate[:, :-1], weight, **said)


@both
def test_heads_cut_out_of_a_wider_row(library: NativeLibrary, dtype: torch.dtype) -> None:
    row, weight = torch.randn(7, 6 * 32).to(dtype), torch.randn(32).to(dtype)
    q, k = row[:, :128].unflatten(-1, (4, 32)), row[:, 128:].unflatten(-1, (2, 32))
    for x in (q, k, q.transpose(0, 1)):
        close(kernel(library, "rms_norm")(x, weight, eps=1e-5), ops.rms_norm.reference(x, weight, eps=1e-5))
    table, positions = torch.randn(50, 32), torch.randint(0, 50, (7,), dtype=torch.int32)
    for rotary, pairs in ((32, False), (12, False), (32, True), (10, True)):
        said = {"rotary_dim": rotary, "interleaved": pairs}
        got = kernel(library, "rope")(q, k, positions, table[:, :rotary].contiguous(), **said)
        want = ops.rope.reference(q, k, positions, table[:, :rotary], **said)
        for g, w in zip(got, want, strict=True):
            close(g, w)


@both
@pytest.mark.parametrize("act", ["silu", "gelu_tanh", "gelu"])
def test_gates_also_far_from_zero(library: NativeLibrary, dtype: torch.dtype, act: str) -> None:
    x = torch.cat([torch.randn(5, 70), torch.linspace(-200, 200, 350).view(5, 70)]).to(dtype)
    close(kernel(library, "act_and_mul")(x, act=act), ops.act_and_mul.reference(x, act=act))
    x[0, 0], x[1, 0] = float("-inf"), float("nan")
    got = kernel(library, "act_and_mul")(x, act=act)
    assert got[0, 0] == 0
    assert got[1, 0].isnan()


@both
@pytest.mark.parametrize("act", ["silu_clamp_1.3", "silu_cut_0.7", "situ_1.3_0.7", "situ_1.1_0"])
def test_gates_with_bounds_of_any_value(library: NativeLibrary, dtype: torch.dtype, act: str) -> None:
    """A bound need not be a multiple of a power of two."""
    (bound,) = (k for k in kernels(library) if k.op == "act_and_mul")
    assert bound.supports({"act": act, "dtype": "float32"}) is None
    x = torch.cat([torch.randn(5, 70), torch.linspace(-200, 200, 350).view(5, 70)]).to(dtype)
    close(kernel(library, "act_and_mul")(x, act=act), ops.act_and_mul.reference(x, act=act))
    x[0, 0], x[1, 0], x[2, 35] = float("-inf"), float("nan"), float("nan")
    got = kernel(library, "act_and_mul")(x, act=act)
    assert got[0, 0].abs() < 1e-30
    assert got[1, 0].isnan()
    assert got[2, 0].isnan()


def test_situ_is_right_where_it_is_small(library: NativeLibrary) -> None:
    """tanh by a difference of exponentials would lose the digits of values near 0."""
    x = torch.cat([torch.logspace(-9, 1, 3001), torch.ones(3001)])[None]
    gate = x[:, :3001].double()
    want = 1.5 * torch.tanh(gate / 1.5) * torch.sigmoid(gate)
    got = kernel(library, "act_and_mul")(x, act="situ_1.5_0").double()
    assert ((got - want) / want).abs().max() < 2e-6


@both
def test_squares_of_what_is_above_zero(library: NativeLibrary, dtype: torch.dtype) -> None:
    x = torch.cat([torch.randn(5, 70), torch.linspace(-200, 200, 350).view(5, 70)]).to(dtype)
    x[0, 0], x[1, 0] = float("-inf"), float("nan")
    got = kernel(library, "activation")(x, act="relu2")
    assert torch.equal(got.nan_to_num(7), ops.activation.reference(x, act="relu2").nan_to_num(7))
    assert got[1, 0].isnan()


@both
@pytest.mark.parametrize("act", ["silu", "gelu_tanh", "gelu"])
def test_activations_alone(library: NativeLibrary, dtype: torch.dtype, act: str) -> None:
    x = torch.cat([torch.randn(5, 71), torch.linspace(-200, 200, 355).view(5, 71)]).to(dtype)
    run = kernel(library, "activation")
    close(run(x, act=act), ops.activation.reference(x, act=act))
    x[0, 0], x[1, 0], x[2, 0] = float("-inf"), float("nan"), float("inf")
    got = run(x, act=act)
    assert got[0, 0] == 0
    assert got[1, 0].isnan()
    assert got[2, 0] == float("inf")


def test_gelu_is_right_where_it_is_small(library: NativeLibrary) -> None:
    x = torch.linspace(-8, -0.001, 3001)[None]
    want = x.double() * torch.special.erfc(-x.double() / 2**0.5) / 2
    got = kernel(library, "activation")(x, act="gelu").double()
    assert ((got - want) / want).abs().max() < 1e-5
