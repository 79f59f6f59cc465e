"""Compiled linear layers: what the op's body gives, at every instruction set, and the same bits whatever comes with a row."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from thalweg.backends.cpu import CpuPlatform
from thalweg.backends.cpu.native import NativeLibrary
from thalweg.backends.cpu.native.linear import kernels
from thalweg.hal import ops
from thalweg.hal.op import Kernel
from thalweg.hal.ops.quantise import quantise
from thalweg.hal.weights import DENSE, QTensor, WeightFormat

ASKED = ("table", "mxfp4", "nvfp4", "mins", "static", "tensor")
"""In names of formats that are not made of values on the way into their packed form."""
NF4 = tuple(math.copysign(abs(i / 7.5 - 1) ** 1.3, i - 7.5) for i in range(16))
"""Levels that no bfloat16 holds, not in order of size."""
FORMATS = {
    "dense": DENSE,
    "int8": WeightFormat("int", 8),
    "int8-groups": WeightFormat("int", 8, 32),
    "int8-groups-zeros": WeightFormat("int", 8, 64, symmetric=False),
    "int8-mins": WeightFormat("int", 8, 32, symmetric=False, mins=True),
    "int8-rows": WeightFormat("int", 8, act="int8"),
    "int4": WeightFormat("int", 4, 128),
    "int4-small-groups": WeightFormat("int", 4, 6),
    "int4-zeros": WeightFormat("int", 4, 32, symmetric=False),
    "int4-mins": WeightFormat("int", 4, 32, symmetric=False, mins=True),
    "int4-groups-of-no-vector": WeightFormat("int", 4, 36, symmetric=False),
    "int4-groups-larger-than-a-block": WeightFormat("int", 4, 260, symmetric=False),
    "int4-row": WeightFormat("int", 4),
    "w4a8": WeightFormat("int", 4, 64, symmetric=False, act="int8_per_group"),
    "w4a8-mins": WeightFormat("int", 4, 32, symmetric=False, mins=True, act="int8_per_group"),
    "w4a8-sixteenths": WeightFormat("int", 4, 32, symmetric=False, mins=True, sixteenths=True, act="int8_per_group"),
    "w4a8-symmetric-small-groups": WeightFormat("int", 4, 12, act="int8_per_group"),
    "w4a8-row": WeightFormat("int", 4, act="int8_per_group"),
    "w8a8-keep": WeightFormat("int", 8, act="int8_keep4"),
    "w8a8-groups": WeightFormat("int", 8, 64, act="int8_per_group"),
    "w8a8-zeros-small-groups": WeightFormat("int", 8, 12, symmetric=False, act="int8_per_group"),
    "w8a8-groups-row": WeightFormat("int", 8, act="int8_per_group"),
    "table": WeightFormat("table", 4, 64, levels=NF4),
    "table-row": WeightFormat("table", 4, levels=NF4),
    "mxfp4": WeightFormat("float", 4, 32),
    "nvfp4": WeightFormat("float", 4, 16, scale_dtype="float8_e4m3fn"),
    "fp8": WeightFormat("float", 8),
    "fp8-tensor": WeightFormat("float", 8, -1),
    "fp8-blocks": WeightFormat("float", 8, 128),
    "fp8-rounded": WeightFormat("float", 8, act="float8_e4m3fn"),
    "fp8-blocks-rounded": WeightFormat("float", 8, 128, act="float8_e4m3fn_per_group"),
    "fp8-static": WeightFormat("float", 8, act="float8_e4m3fn_static"),
    "int4-rounded-to-fp8": WeightFormat("int", 4, 128, act="float8_e4m3fn"),
}
SHAPES = [(1, 2), (64, 64), (65, 161), (200, 1030)]
"""(outputs, inputs): less than a panel, one, an odd number of inputs, more than a block."""


def make(n: int, k: int, dtype: torch.dtype, format: WeightFormat) -> tuple[Any, Any, torch.Tensor]:
    """(QTensor, what the body takes, bias)"""
    g = torch.Generator().manual_seed(n * 10_000 + k)
    weight = (torch.randn(n, k, generator=g) / k**0.5).to(dtype)
    bias = torch.randn(n, generator=g).to(dtype)
    if format == DENSE:
        return QTensor(DENSE, (n, k), {"weight": weight}), weight, bias
    made = quantise(weight, format)
    if format.own_scale:
        made = replace(made, data={**made.data, "input_scale": torch.tensor([[0.01]])})
    return made, dict(made.data), bias


def lacks(kernel: Kernel, format: WeightFormat) -> bool:
    """Has this instruction set no product for it? Then it says so, and packs none."""
    if kernel.supports({"dtype": "float32", "weight": format, "in_features": 64, "out_features": 64}) is None:
        return False
    assert (format.bits, format.act) == (8, "int8_per_group")
    with pytest.raises(ValueError, match="no product of four bytes"):
        kernel.pack(make(3, 64, torch.float32, format)[0])
    assert kernel.pack.mapped is not None
    assert kernel.pack.mapped([np.zeros((3, 64), np.float32)], format) is None
    return True


def test_bytes_meet_bytes_by_groups_where_an_instruction_multiplies_four(library: NativeLibrary) -> None:
    kernel, *_ = kernels(library)
    fours = ("avx512vnni", "avxvnni", "avx512bf16", "amx", "neonbf16")
    assert lacks(kernel, FORMATS["w8a8-groups"]) == (library.level not in fours)
    assert kernel.supports(
        {"dtype": "bfloat16", "weight": FORMATS["w8a8-groups-row"], "in_features": 1 << 17, "out_features": 64}
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
@pytest.mark.sampled(8)
def test_every_shape_equals_the_body_and_rows_keep_their_bits(
    library: NativeLibrary, format: WeightFormat, dtype: torch.dtype
) -> None:
    kernel, *_ = kernels(library)
    for n, k in SHAPES if not lacks(kernel, format) else ():
        made, plain, bias = make(n, k, dtype, format)
        packed = kernel.pack(made)
        x = torch.randn(140, k, generator=torch.Generator().manual_seed(1)).to(dtype)
        want = ops.linear.reference(x, plain, bias, act=format.act, group=format.group).float()
        whole = kernel.run(x, packed, bias)
        worst = ((whole.float() - want).abs().max() / want.abs().max()).item()
        assert worst <= (1e-2 if dtype == torch.bfloat16 else 1e-5), (n, k, worst)
        for first, rows in ((0, 1), (5, 2), (7, 3), (100, 4), (30, 5), (2, 6), (3, 7), (130, 9), (20, 14), (64, 30), (1, 129)):
            assert torch.equal(kernel.run(x[first : first + rows], packed, bias), whole[first : first + rows]), (n, k, rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_a_weight_in_parts_is_the_same_as_in_one_piece(library: NativeLibrary, dtype: torch.dtype) -> None:
    """Parts end within a panel and at its edge; one begins at an odd address, as a tensor of a file may."""
    kernel, *_ = kernels(library)
    for k in (33, 64):
        made, weight, bias = make(261, k, dtype, DENSE)
        whole = weight.view(torch.int16 if dtype == torch.bfloat16 else torch.float32).numpy()
        whole = whole.view("uint16") if dtype == torch.bfloat16 else whole
        odd = np.frombuffer(b"x" + whole[130:].tobytes(), np.uint8)[1:].view(whole.dtype).reshape(-1, k)
        assert not odd.flags.aligned
        x = torch.randn(3, k).to(dtype)
        want = kernel.run(x, kernel.pack(made), bias)
        for parts in ([whole], [whole[:64], whole[64:130], odd], [whole[:10], whole[10:11], whole[11:70], whole[70:]]):
            assert kernel.pack.mapped is not None
            assert torch.equal(kernel.run(x, kernel.pack.mapped(parts, DENSE), bias), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("name", [n for n, f in FORMATS.items() if f != DENSE])
def test_a_weight_rounded_on_the_way_is_the_one_that_quantise_rounds(
    library: NativeLibrary, dtype: torch.dtype, name: str
) -> None:
    """To the bit, also of rows of nothing but zeros, of one sign, and with one value far from the rest."""
    (kernel, *_), format = kernels(library), FORMATS[name]
    for n, k in ((70, 256), (261, 100), (64, 33)) if not lacks(kernel, format) else ():
        weight = torch.randn(n, k, generator=torch.Generator().manual_seed(n)).to(dtype)
        weight[0], weight[1], weight[2], weight[3, 5] = 0, weight[1].abs(), -weight[2].abs(), 1000
        raw = weight.view(torch.int16 if dtype == torch.bfloat16 else torch.float32).numpy()
        raw = raw.view("uint16") if dtype == torch.bfloat16 else raw
        x = torch.randn(5, k).to(dtype)
        want = kernel.run(x, kernel.pack(quantise(weight, format)), None, act=format.act, group=format.group)
        assert kernel.pack.mapped is not None
        for parts in ([raw], [raw[:64], raw[64:]], [raw[:10], raw[10:11], raw[11:]]):
            packed = kernel.pack.mapped([p for p in parts if len(p)], format)
            if format.group % 4 or any(a in name for a in ASKED) or (format.sixteenths and k % 32):  # torch rounds these
                assert packed is None
                continue
            assert packed.dtype is None
            assert torch.equal(kernel.run(x, packed, None, act=format.act, group=format.group), want), (n, k)


@pytest.mark.parametrize("format", [FORMATS["w4a8"], FORMATS["w4a8-sixteenths"], FORMATS["int4-zeros"]], ids=str)
def test_the_plan_counts_the_bytes_of_a_packed_weight(library: NativeLibrary, format: WeightFormat) -> None:
    """Rounded on the way, and as codes."""
    (kernel, *_), weight = kernels(library), torch.randn(128, 512)
    want = CpuPlatform().quantised_bytes(format, *weight.shape)
    assert kernel.pack.mapped is not None
    for packed in (kernel.pack(quantise(weight, format)), kernel.pack.mapped([weight.numpy()], format)):
        assert packed.bytes == want + 64  # the library rounds up


@pytest.mark.parametrize(
    "name",
    [n for n, f in FORMATS.items() if f != DENSE and f.group % 4 == 0 and not any(a in n for a in ASKED)],
)
def test_what_is_no_number_spoils_its_own_group_at_most(library: NativeLibrary, name: str) -> None:
    (kernel, *_), format = kernels(library), FORMATS[name]
    if lacks(kernel, format):
        return
    weight = torch.randn(70, 256, generator=torch.Generator().manual_seed(3))
    broken = weight.clone()
    broken[5, 200], broken[69, 255] = float("nan"), float("inf")
    x = torch.randn(4, 256)
    assert kernel.pack.mapped is not None
    want, got = (
        kernel.run(x, kernel.pack.mapped([w.numpy()], format), None, act=format.act, group=format.group)
        for w in (weight, broken)
    )
    keep = [i for i in range(70) if i not in (5, 69)]
    assert torch.equal(got[:, keep], want[:, keep])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_more_rows_than_are_made_ready_at_once_keep_their_bits(library: NativeLibrary, dtype: torch.dtype) -> None:
    kernel, _, argmax = kernels(library)
    for format in (DENSE, FORMATS["int8-groups-zeros"], FORMATS["int8-rows"]):
        packed = kernel.pack(make(3, 4160, dtype, format)[0])
        x = torch.randn(300, 4160, generator=torch.Generator().manual_seed(2)).to(dtype)
        whole = kernel.run(x, packed)
        assert torch.equal(whole[250:], kernel.run(x[250:], packed))
        assert torch.equal(argmax.run(x, packed)[0], whole.argmax(-1).int())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_the_argmax_of_equals_is_the_first_and_nan_is_told(library: NativeLibrary, dtype: torch.dtype) -> None:
    kernel, _, argmax = kernels(library)
    n, inf, nan = 200, float("inf"), float("nan")
    rows = {  # outputs by place, the others 0; which is the largest
        "two panels": ({70: 2.0, 130: 2.0}, 70),
        "one panel": ({75: 2.0, 91: 2.0, 66: 1.0}, 75),
        "the last": ({199: 1.0}, 199),
        "all negative": ({**dict.fromkeys(range(n), -3.0), 5: -1.0}, 5),
        "none": ({}, 0),
        "endless": ({64: inf, 65: inf}, 64),
        "all lost": (dict.fromkeys(range(n), -inf), 0),
        "no number": ({3: 7.0, 190: nan}, None),
    }
    weight = torch.tensor([[outputs.get(i, 0.0) for outputs, _ in rows.values()] for i in range(n)], dtype=dtype)
    packed = kernel.pack(QTensor(DENSE, (n, 1), {"weight": torch.ones(n, 1, dtype=dtype)}))
    for r, (name, (_, place)) in enumerate(rows.items()):  # one input of 1: the bias is the outputs
        at, most = argmax.run(torch.zeros(1, 1, dtype=dtype), packed, weight[:, r].contiguous())
        if place is None:
            assert most.isnan().all(), name
        else:
            assert (at.item(), most.item()) == (place, weight[place, r].item()), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_rows_come_back_out_of_a_packed_weight(library: NativeLibrary, dtype: torch.dtype) -> None:
    linear, embed, _ = kernels(library)
    assert linear.pack == embed.pack  # one weight serves both
    for n, k in ((130, 33), (64, 48)):
        made, weight, _ = make(n, k, dtype, DENSE)
        tokens = torch.randint(0, n, (3, 19), dtype=torch.int32)
        assert torch.equal(embed.run(tokens, linear.pack(made)), weight[tokens.long()])
        assert embed.run(torch.tensor([n, -1, 1 << 30], dtype=torch.int32), linear.pack(made)).count_nonzero() == 0
    with pytest.raises(ValueError, match="does not choose among rows"):
        embed.run(tokens.long(), linear.pack(made))


def test_no_rows_give_no_rows_and_leading_dimensions_stay(library: NativeLibrary) -> None:
    kernel, *_ = kernels(library)
    packed = kernel.pack(make(70, 48, torch.float32, DENSE)[0])
    assert kernel.run(torch.empty(0, 48), packed).shape == (0, 70)
    x = torch.randn(2, 3, 48)
    assert torch.equal(kernel.run(x, packed).reshape(6, 70), kernel.run(x.reshape(6, 48), packed))
    wide = torch.randn(3, 96)
    assert torch.equal(kernel.run(wide[:, ::2], packed), kernel.run(wide[:, ::2].contiguous(), packed))


def test_what_does_not_fit_is_refused_before_a_pointer_is_followed(library: NativeLibrary) -> None:
    kernel, *_ = kernels(library)
    packed = kernel.pack(make(70, 48, torch.float32, DENSE)[0])
    for x, bias in (
        (torch.zeros(2, 47), None),
        (torch.zeros(2, 48, dtype=torch.bfloat16), None),
        (torch.zeros(2, 48), torch.zeros(70).bfloat16()),
        (torch.zeros(2, 48), torch.zeros(69)),
    ):
        with pytest.raises(ValueError, match="does not fit"):
            kernel.run(x, packed, bias)


@pytest.mark.parametrize("name", ["int8", "int8-groups-zeros", "int4", "int4-zeros", "int4-row"])
def test_an_input_far_larger_than_the_rest_leaves_them_their_precision(library: NativeLibrary, name: str) -> None:
    """Inputs of such formats count as they are, or as 16-bit integers by the largest of a group; 8 bits would not do, and are a
    format of their own."""
    (kernel, *_), format = kernels(library), FORMATS[name]
    made, plain, _ = make(64, 512, torch.bfloat16, format)
    x = torch.randn(3, 512, generator=torch.Generator().manual_seed(4)).bfloat16()
    far = x.clone()
    far[:, 7] += 100
    got = [kernel.run(v, kernel.pack(made), act=format.act, group=format.group).float() for v in (far, x)]
    want = [ops.linear.reference(v.double(), plain, None, act=format.act, group=format.group) for v in (far, x)]
    rest = (got[0] - want[0].float()).abs() / want[0].abs().float().clamp(min=1)
    assert rest.max() < 1e-2, rest.max()
    assert ((got[1] - want[1].float()).abs().max() / want[1].abs().max()) < 1e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_infinities_and_nan_stay_in_their_row(library: NativeLibrary, format: WeightFormat, dtype: torch.dtype) -> None:
    """And spoil all of it, also where inputs are rounded: what a model has lost must be seen to be lost. Only by a scale of the
    checkpoint's own are infinities rounded to the largest number, which is what the op says."""
    kernel, *_ = kernels(library)
    if lacks(kernel, format):
        return
    packed, like = kernel.pack(make(64, 72, dtype, format)[0]), {"act": format.act, "group": format.group}
    x = torch.randn(8, 72).to(dtype)
    clean = kernel.run(x, packed, **like)
    x[3, 5], x[4, 71] = float("nan"), float("inf")
    got = kernel.run(x, packed, **like)
    keep = [0, 1, 2, 5, 6, 7]
    assert torch.equal(got[keep], clean[keep])
    assert got[3].isnan().all()
    assert got[4].isfinite().all() if format.own_scale else not got[4].isfinite().any()
