"""Rounding of weights and activations against sums done by hand, and against torch's own 8-bit arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from thalweg.hal.ops.matmul import linear
from thalweg.hal.ops.quantise import E2M1, at_rest, dequantise, quantise, quantise_rows, round_rows
from thalweg.hal.weights import WeightFormat

FORMATS = {
    "int8": (WeightFormat("int", 8), 1 / 254),
    "int8 of the tensor": (WeightFormat("int", 8, -1), 1 / 254),
    "int4 groups": (WeightFormat("int", 4, 32), 1 / 14),
    "int4 zeros": (WeightFormat("int", 4, 64, symmetric=False), 1 / 15),
    "int4 zeros, fitted": (WeightFormat("int", 4, 16, symmetric=False), 2 / 15),  # largest values are clamped, sums kept
    "float8": (WeightFormat("float", 8, 32), 1 / 16),
    "mxfp4": (WeightFormat("float", 4, 32), 1 / 4),
    "nvfp4": (WeightFormat("float", 4, 16, scale_dtype="float8_e4m3fn"), 1 / 4),
    "table": (WeightFormat("table", 4, 32, levels=(-1.0, -0.75, 0.0, 0.5, 1.0)), 3 / 8),
}
"""With the largest error of a code, as a share of the largest magnitude of what shares its scale."""


SIXTEENTHS = WeightFormat("int", 4, 32, symmetric=False, mins=True, sixteenths=True)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("fan_in", [64, 80])
def test_rounding_is_within_half_a_step_also_in_a_short_last_group(name: str, fan_in: int) -> None:
    format, step = FORMATS[name]
    weight = torch.randn(7, fan_in) + 0.3
    made = quantise(weight, format)
    back = dequantise(made.data, format.group, torch.float32)
    assert made.data["codes"].shape == weight.shape == back.shape
    size = format.group if format.group > 0 else fan_in
    for at in range(0, fan_in, size):
        group = weight[:, at : at + size]
        span = group.abs().amax(-1, keepdim=True)
        if format.group == -1:
            span = weight.abs().max()
        if not format.symmetric:
            span = group.amax(-1, keepdim=True).clamp(min=0) - group.amin(-1, keepdim=True).clamp(max=0)
        slack = 2**-8 if format.kind == "int" and format.bits == 4 else 1e-3  # whose scales are bfloat16
        assert ((back[:, at : at + size] - group).abs() <= span * step * (1 + slack)).all()


@pytest.mark.parametrize("format", [WeightFormat("int", 4, 32, symmetric=False), SIXTEENTHS], ids=str)
def test_fitted_groups_lose_less_than_their_range_and_keep_their_sums(format: WeightFormat) -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(1)) + 0.2
    weight[0], weight[1], weight[2, :32] = 0, weight[1].abs(), 3  # nothing, one sign, one value
    made = quantise(weight, format)
    scales = made.data["scales"]
    zeros = made.data["mins"] / scales * 16 if format.mins else made.data["zeros"].float()
    assert torch.equal(zeros, zeros.round())
    assert made.data["codes"].max() <= 15
    assert 0 <= zeros.min() <= zeros.max() <= 15 * (16 if format.mins else 1)
    off = (weight - dequantise(made.data, 32, torch.float32)).unflatten(1, (-1, 32))
    assert (off.sum(-1).abs() <= 0.502 * scales)[3:].all()
    groups = weight.unflatten(1, (-1, 32))
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    step = ((high - low) / 15).clamp(min=1e-9)
    zero = (-low / step).round()
    plain = groups - (((groups / step).round() + zero).clamp(0, 15) - zero) * step
    assert off.square().sum() < (0.86 if format.mins else 0.99) * plain.square().sum()


def test_mxfp4_holds_the_nearest_of_its_levels_under_a_power_of_two() -> None:
    weight = torch.randn(5, 64) * 3
    made = quantise(weight, WeightFormat("float", 4, 32))
    scales = made.data["scales"].numpy()
    assert (np.exp2(np.round(np.log2(scales))) == scales).all()
    levels = np.unique([s * v for v in E2M1 for s in (-1, 1)])
    for i in range(5):
        for j in range(64):
            x = weight[i, j].item() / scales[i, j // 32]
            assert abs(made.data["codes"][i, j].float().item() - x) == pytest.approx(np.abs(levels - x).min(), abs=1e-6)
            assert abs(x) <= 6


def test_nvfp4_has_8_bit_scales_under_one_of_the_tensor() -> None:
    """By the formula of the format: the largest scale is the largest float8_e4m3fn, and values are code * scale * scale."""
    weight = torch.randn(5, 64) * 0.02
    weight[1, :16], weight[2, :16] = 0, 1e-9
    made = quantise(weight, WeightFormat("float", 4, 16, scale_dtype="float8_e4m3fn"))
    assert made.data["scales"].dtype == torch.float8_e4m3fn
    assert made.data["scales"].float().max() == 448
    assert made.data["scale"].flatten().tolist() == pytest.approx([weight.abs().max().item() / 6 / 448] * len(weight))
    codes, scales = made.data["codes"].double().numpy(), made.data["scales"].double().numpy()
    assert set(np.abs(codes).ravel()) <= set(E2M1)
    want = codes * np.repeat(scales, 16, 1) * made.data["scale"].double().numpy()
    np.testing.assert_allclose(dequantise(made.data, 16, torch.float32).numpy(), want, rtol=1e-6)


def test_rows_of_activations_round_as_numpy_does() -> None:
    x = torch.randn(4, 33)
    x[2] = 0
    codes, scale = quantise_rows(x, "int8")
    want = np.abs(x.numpy()).max(-1, keepdims=True) / 127
    want[2] = 1
    np.testing.assert_array_equal(scale.numpy(), want.astype(np.float32))
    np.testing.assert_array_equal(codes.numpy(), np.rint(x.numpy() / want.astype(np.float32)).astype(np.int8))


def test_w8a8_is_the_product_of_whole_numbers_scaled() -> None:
    """Against int32 arithmetic done by numpy."""
    format = WeightFormat("int", 8, act="int8")
    x, made = torch.randn(3, 96), quantise(torch.randn(10, 96), format)
    codes, scale = quantise_rows(x, "int8")
    whole = codes.numpy().astype(np.int32) @ made.data["codes"].numpy().astype(np.int32).T
    want = whole * scale.numpy() * made.data["scales"].numpy().T
    np.testing.assert_allclose(linear(x, dict(made.data), act="int8").numpy(), want, rtol=1e-4, atol=1e-5)


def test_static_scales_and_largest_magnitudes_of_inputs_are_taken_from_outside() -> None:
    x = torch.tensor([[0.5, -3.0, 900.0]])
    assert round_rows(x, "int8_static", scale=torch.tensor([[0.25]])).tolist() == [[0.5, -3.0, 127 / 4]]
    assert round_rows(x, "float8_e4m3fn_static", scale=torch.tensor([[1.0]])).tolist() == [[0.5, -3.0, 448.0]]
    free, bound = round_rows(x, "float8_e4m3fn"), round_rows(x, "float8_e4m3fn_upto448.0")
    assert free[0, 2] == 900
    assert bound.tolist() == [[0.5, -3.0, 448.0]]
    assert torch.equal(round_rows(x, "float8_e4m3fn_upto1000.0"), free)


def test_micro_scales_of_inputs_are_those_of_the_definition() -> None:
    """By hand: largest 5 -> exponent 2, so e2m1 has scale 1 and e4m3 2**-6; groups do not know each other."""
    x = torch.zeros(1, 40)
    x[0, :4], x[0, 33] = torch.tensor([5.0, 2.4, -0.3, 0.25]), 24.0
    rounded = round_rows(x, "mxfp4")
    assert rounded[0, :4].tolist() == [4.0, 2.0, -0.5, 0.0]
    assert rounded[0, 33] == 24.0
    assert rounded.shape == x.shape
    assert round_rows(x, "mxfp8")[0, :4].tolist() == [5.0, 2.5, -0.3125, 0.25]
    scale = torch.tensor([[1 / 64]])
    held = round_rows(x, "nvfp4", scale=scale)  # 5 / 6 * 64 = 53.3 -> 52 in e4m3, so steps of 52 / 64
    assert held[0, :4].tolist() == [6 * 52 / 64, 3 * 52 / 64, -0.5 * 52 / 64, 0.5 * 52 / 64]


def test_a_table_s_codes_lie_two_to_a_byte_and_mean_their_levels() -> None:
    format = WeightFormat("table", 4, 16, levels=tuple(i * abs(i) / 64.0 for i in range(-8, 8)))
    weight = torch.randn(6, 64)
    made = quantise(weight, format)
    kept = at_rest(made)
    assert kept.keys() == {"pairs", "scales", "levels"}
    assert kept["pairs"].shape == (6, 32)
    assert torch.equal(dequantise(kept, 16, torch.float32), dequantise(made.data, 16, torch.float32))
    assert format.bytes(6, 64) + format.shared_bytes(64) == sum(a.nbytes for a in kept.values())
