"""Every kernel of the device against the body that defines its op. Where a kernel claims that a row's bits do not
depend on the batch, that too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from thalweg.hal import ops
from thalweg.hal.device import Device
from thalweg.hal.op import Binder
from thalweg.hal.testing import cases


def test_kernel_gives_what_the_reference_body_gives(device: Device, case: Any) -> None:
    op, sample, dtype, kernel = case
    args = cases.host_arguments(op, sample, dtype)
    bound = cases.bind(op, sample, args, dtype, kernel)
    if kernel and bound.choice.kernel != kernel.name:
        pytest.skip(f"{kernel.name} refuses: {bound.choice.refused[0][1]}")
    got = cases.run(device, bound, cases.put(device, op, bound, args))
    want = cases.reference(op, sample, args)
    worst = max(cases.difference(g, w) for g, w in zip(got, want, strict=True))
    allowed = op.tolerances.get(dtype, 0.0)
    assert worst <= allowed, f"{bound.choice}: differs by {worst:.3g} of the largest magnitude, {allowed:g} is allowed"


def test_the_argmax_is_that_of_the_linear_kernel_whose_weight_it_reads(device: Device, case: Any) -> None:
    """Bit for bit, of every sample of `linear`: which of the two a step calls must not show."""
    op, sample, dtype, kernel = case
    if kernel is None or op is not ops.linear:
        pytest.skip("runs no linear layer")
    fused = [k for k in device.kernels if k.op == "linear_argmax" and k.pack == kernel.pack]
    if not fused:
        pytest.skip("not offered")
    args = cases.host_arguments(op, sample, dtype)
    bound = cases.bind(op, sample, args, dtype, kernel)
    if bound.choice.kernel != kernel.name:
        pytest.skip(f"{kernel.name} refuses: {bound.choice.refused[0][1]}")
    offered = Binder(fused).offer(ops.linear_argmax, bound, **cases.spec(op, sample, args, dtype))
    assert offered is not None
    (whole,) = cases.run(device, bound, cases.put(device, op, bound, args))
    at, most = cases.run(device, offered, cases.put(device, op, bound, args))
    np.testing.assert_array_equal(at, whole.argmax(-1))
    np.testing.assert_array_equal(most, whole.max(-1))


def test_a_linear_layer_joined_with_a_norm_or_gate_gives_the_bits_of_both(device: Device, case: Any) -> None:
    """Whether layers offer the joined op must not show."""
    op, sample, dtype, kernel = case
    if kernel is None or op.name not in ("rms_norm_linear", "act_and_mul_linear"):
        pytest.skip("joins nothing")
    args = cases.host_arguments(op, sample, dtype)
    bound = cases.bind(op, sample, args, dtype, kernel)
    if bound.choice.kernel != kernel.name:
        pytest.skip(f"{kernel.name} refuses: {bound.choice.refused[0][1]}")
    facts = cases.spec(op, sample, args, dtype)
    parts = Binder([k for k in device.kernels if k.op != "linear" or (k.pack == kernel.pack and k.name == kernel.name)])
    linear = parts.bind(ops.linear, **facts)
    if op is ops.act_and_mul_linear:
        gate = parts.bind(ops.act_and_mul, dtype=dtype, act=facts["gate"])
        _assert_same(device, op, bound, args, bound, lambda x, *more: linear(gate(x), *more))
        return
    norm = {"dtype": dtype, "size": facts["in_features"]} | {k: facts[k] for k in ("eps", "offset") if k in facts}
    first, add = parts.bind(ops.rms_norm, **norm), parts.bind(ops.add_rms_norm, **norm)

    def run_parts(x: Any, residual: Any, norm: Any, *more: Any) -> Any:
        normed, total = add(x, residual, norm)
        return linear(normed, *more), total

    _assert_same(device, op, bound, args, bound, run_parts)
    _assert_same(
        device,
        op,
        bound,
        args,
        lambda x, r, *more: bound(x, None, *more),
        lambda x, r, n, *more: (linear(first(x, n), *more), x),
    )


def _assert_same(device: Device, op: Any, bound: Any, args: list[torch.Tensor], f: Any, g: Any) -> None:
    """f and g of these arguments have the same bits."""
    each = (cases.run(device, call, cases.put(device, op, bound, args)) for call in (f, g))
    for got, want in zip(*each, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_row_is_the_same_bits_in_any_batch(device: Device, case: Any) -> None:
    op, sample, dtype, kernel = case
    if op.name not in cases.ROWS:
        pytest.skip(f"{op.name} has no row per token or sequence")
    if not (kernel.batch_invariant if kernel else op.batch_invariant and device.bodies_invariant):
        pytest.skip(f"{kernel.name if kernel else 'the reference body'} does not claim it here")
    args = cases.host_arguments(op, sample, dtype)
    bound = cases.bind(op, sample, args, dtype, kernel)
    if kernel and bound.choice.kernel != kernel.name:
        pytest.skip(f"{kernel.name} refuses: {bound.choice.refused[0][1]}")
    n, run = args[0].shape[0], cases.CompiledFunction(device, bound)
    whole = _pick(device, op, bound, run, args, np.arange(n))
    shuffled = np.random.default_rng(0).integers(0, n, 37)
    alone = [np.array([i]) for i in sorted({0, n // 2, n - 1})]
    for order in (*alone, np.arange(n)[::-1], shuffled, shuffled[:3], shuffled[:6]):
        for got, want in zip(_pick(device, op, bound, run, args, order), whole, strict=True):
            np.testing.assert_array_equal(got, want[order], err_msg=f"{bound.choice}: rows {order.tolist()}")


def _pick(
    device: Device, op: Any, bound: Any, run: cases.CompiledFunction, args: list[torch.Tensor], order: np.ndarray
) -> list[np.ndarray]:
    index = torch.from_numpy(order.copy())
    return run(cases.put(device, op, bound, cases.pick(op, args, index)))
