"""Codes, scales and rounded inputs of compiled linear layers, number by number: none may be off by a bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from thalweg.backends.cpu.native import QUADS, NativeLibrary
from thalweg.backends.cpu.native.linear import kernels
from thalweg.hal import ops
from thalweg.hal.ops.quantise import quantise, round_rows
from thalweg.hal.weights import QTensor, WeightFormat


def column(library: NativeLibrary, made: QTensor, at: int = 0) -> torch.Tensor:
    """One column of a weight, as the kernel multiplies it with 1: alone, and among many rows."""
    kernel, *_ = kernels(library)
    packed, one = kernel.pack(made), torch.zeros(9, made.shape[1])
    one[:, at] = 1
    many = kernel.run(one, packed)
    assert torch.equal(many, kernel.run(one[:1], packed).expand(9, -1)) or many.isnan().any()
    return many[0]


def test_every_8_bit_float_is_itself_and_nan_makes_its_output_nan(library: NativeLibrary) -> None:
    codes = torch.arange(256, dtype=torch.uint8).repeat(2, 1).t().contiguous().view(torch.float8_e4m3fn)
    format = WeightFormat("float", 8)
    want = codes.to(torch.float32)[:, 0]
    for at in (0, 1):
        got = column(library, QTensor(format, (256, 2), {"codes": codes, "scales": torch.ones(256, 1)}), at)
        assert torch.equal(got.nan_to_num(1000.0), want.nan_to_num(1000.0))
    kernel, *_ = kernels(library)
    narrow = kernel.run(torch.tensor([[1.0, 0.0]] * 20).bfloat16(), kernel.pack(quantise(torch.randn(256, 2), format)))
    assert narrow.isfinite().all()
    packed = kernel.pack(QTensor(format, (256, 2), {"codes": codes, "scales": torch.ones(256, 1)}))
    for rows in (1, 20):
        narrow = kernel.run(torch.tensor([[0.0, 1.0]] * rows).bfloat16(), packed)[0].float()
        assert torch.equal(narrow.nan_to_num(1000.0), want.nan_to_num(1000.0))


@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("kind", ["symmetric", "zeros", "mins"])
def test_every_code_is_itself(library: NativeLibrary, bits: int, kind: str) -> None:
    n = 1 << bits
    codes = torch.arange(n).repeat(4, 1).t().contiguous()
    format = WeightFormat("int", 8 if bits > 4 else 4, symmetric=kind == "symmetric", mins=kind == "mins")
    data = {"codes": codes.to(torch.uint8), "scales": torch.full((n, 1), 0.5)}
    want = codes[:, 0].float() * 0.5
    if kind == "symmetric":
        data["codes"] = (codes - n // 2).to(torch.int8)
        want = want - n / 4
    elif kind == "zeros":
        data["zeros"] = (n - 1 - codes[:, :1]).to(torch.uint8)
        want = want - data["zeros"][:, 0] * 0.5
    else:
        data["mins"] = torch.full((n, 1), 3.25)
        want = want - 3.25
    assert torch.equal(column(library, QTensor(format, (n, 4), data), 3), want)


@pytest.mark.parametrize("mins", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_codes_of_six_bits_take_six_bits(library: NativeLibrary, dtype: torch.dtype, mins: bool) -> None:
    kernel, *_ = kernels(library)
    format = WeightFormat("int", 8, 16, symmetric=not mins, mins=mins)
    for n, k in ((1, 2), (65, 161), (130, 1088)):
        made = quantise(torch.randn(n, k, generator=torch.Generator().manual_seed(n)), format)
        made = replace(made, data={**made.data, "codes": made.data["codes"] // 4})
        x = torch.randn(40, k, generator=torch.Generator().manual_seed(1)).to(dtype)
        packed = kernel.pack(made)
        got, want = kernel.run(x, packed), ops.linear.reference(x, dict(made.data), group=16).float()
        assert ((got.float() - want).abs().max() / want.abs().max()) <= (1e-2 if dtype == torch.bfloat16 else 1e-5)
        assert torch.equal(kernel.run(x[:1], packed), got[:1])
        assert torch.equal(kernel.run(x[3:8], packed), got[3:8])
    if library.level not in QUADS:
        eight = kernel.pack(quantise(torch.randn(n, k), format))
        assert eight.bytes - packed.bytes == 192 * 1088 // 4


@pytest.mark.parametrize("levels", ["table", "mxfp4"])
def test_every_level_is_itself(library: NativeLibrary, levels: str) -> None:
    table = torch.randn(1, 16, generator=torch.Generator().manual_seed(0))
    codes, data = torch.arange(16, dtype=torch.uint8).repeat(2, 1).t().contiguous(), {"scales": torch.ones(16, 1)}
    if levels == "table":
        format, want = WeightFormat("table", 4, levels=tuple(table[0].tolist())), table[0]
        data |= {"codes": codes, "levels": table}
    else:
        want = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6] * 2) * torch.tensor([1.0] * 8 + [-1.0] * 8)
        format, data["codes"] = WeightFormat("float", 4), want[:, None].expand(16, 2).contiguous().to(torch.float8_e4m3fn)
    assert torch.equal(column(library, QTensor(format, (16, 2), data), 1), want)


HALF = torch.tensor([1.0, -3.5, 2.0**-24, 1023 * 2.0**-24, 2.0**-14, 65504.0, 0.0, 0.1]).half().float()
MULTIPLES = torch.tensor([63, 1, 0, -32, 17, 127, 5, 40]) * torch.tensor(1.2345).half().float()


def multiples(by: dict[int, int]) -> torch.Tensor:
    """MULTIPLES, but at these places so many times the unit."""
    out = MULTIPLES.clone()
    for at, times in by.items():
        out[at] = times * MULTIPLES[1]
    return out


SCALES = {
    "f16": (HALF, 2),
    "bf16": (torch.tensor([1e-30, 3e30, -2.5, 2.0**-120, 1.0, 7.0, 0.0, 2.0**100]).bfloat16().float(), 2),
    "multiples": (MULTIPLES, 1.5),
    "multiples of next to nothing": (MULTIPLES * 2.0**-100, 1.5),
    "multiples down to -128, as Q6_K has them": (multiples({5: -128}), 1.5),
    "multiples up to 128": (multiples({5: 128}), 1.5),
    "128 both ways": (multiples({5: 128, 2: -128}), 4),
    "multiples that are far apart": (torch.tensor([1.0, 2.0**-7 + 2.0**-20, 3, 5, 7, 9, 11, 13]), 4),
    "any": (torch.tensor([0.1, 1e-40, 2.0, -1e38, 1 / 3, 5.0, 6.0, 7.0]), 4),
    "none": (torch.zeros(8), 1.5),
}
"""Scales of eight groups of 32, and the bytes that one of them takes where they are kept in less than float32."""


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("mins", [False, True])
@pytest.mark.sampled(10)
def test_scales_and_minima_are_kept_exactly_in_the_least_memory(library: NativeLibrary, name: str, mins: bool) -> None:
    values, each = SCALES[name]
    format = WeightFormat("int", 4, 32, symmetric=not mins, mins=mins)
    scales = torch.stack([values.roll(i) for i in range(130)])
    codes = torch.full((130, 256), 3, dtype=torch.uint8 if mins else torch.int8)
    data = {"codes": codes, "scales": scales}
    if mins:
        data |= {"scales": torch.ones(130, 8), "mins": scales}
    made = QTensor(format, (130, 256), data)
    for group in range(8):
        want = 3 - scales[:, group] if mins else 3 * scales[:, group]
        got = column(library, made, group * 32)
        closely = mins or library.level in QUADS  # minima are more than one operation
        close = (got - want).abs() <= 1e-6 * want.abs() + (0 if not mins else 1e-6 * scales[:, group].abs())
        assert close.all() if closely else torch.equal(got, want), group
    if library.quads(library.context, 2, 256, 32):  # the integer products of this level read float32
        return
    kernel, *_ = kernels(library)
    other = 192 * 12 if mins else 0  # scales of 1
    assert kernel.pack(made).bytes == 192 * 128 + 64 + int(192 * 8 * each) + other


@pytest.mark.parametrize("act", ["float8_e4m3fn", "float8_e4m3fn_per_group", "float8_e4m3fn_static"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_inputs_are_rounded_as_the_op_says(library: NativeLibrary, dtype: torch.dtype, act: str) -> None:
    """To the bit: the product of rounded inputs is that of inputs which were rounded before."""
    kernel, *_ = kernels(library)
    for k in (200, 96):
        plain = quantise(torch.randn(70, k, generator=torch.Generator().manual_seed(k)), WeightFormat("float", 8, 64))
        static = torch.tensor([[0.003]])
        made = QTensor(replace(plain.format, act=act), plain.shape, {**plain.data, "input_scale": static})
        x = torch.randn(40, k, generator=torch.Generator().manual_seed(1)) * torch.logspace(-9, 6, 40)[:, None]
        x[3], x[4, ::2], x[5] = 0, -0.0, x[5] * torch.logspace(-6, 0, k)
        x = x.to(dtype)
        want = kernel.run(round_rows(x, act, 64, static), kernel.pack(plain))
        packed = kernel.pack(made)
        assert torch.equal(kernel.run(x, packed, act=act, group=64), want)
        assert torch.equal(kernel.run(x[7:8], packed, act=act, group=64), want[7:8])


def test_8_bit_floats_of_another_kind_are_refused(library: NativeLibrary) -> None:
    kernel, *_ = kernels(library)
    data = {"codes": torch.ones(4, 4).to(torch.float8_e5m2), "scales": torch.ones(4, 1)}
    with pytest.raises(ValueError, match=r"float8_e4m3fn, not torch\.float8_e5m2"):
        kernel.pack(QTensor(WeightFormat("float", 8), (4, 4), data))
