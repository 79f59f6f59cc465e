"""Dense bfloat16 weights in about 12 bits: the bits of every product and row stay those of the weight as it was."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from thalweg import LLM, SamplingParams, nano
from thalweg.backends.cpu import AS_THEY_ARE, CpuOptions, CpuPlatform
from thalweg.backends.cpu.native import NativeLibrary, levels, open_library
from thalweg.backends.cpu.native.experts import NativeExperts
from thalweg.backends.cpu.native.heads import NativeHeads
from thalweg.backends.cpu.native.linear import NativeLinear, PackedWeight
from thalweg.backends.cpu.native.weight_cache import PackedWeightCache
from thalweg.errors import DeviceError
from thalweg.hal.op import Binder
from thalweg.hal.ops import linear
from thalweg.hal.platform import Place
from thalweg.hal.weights import DENSE, QTensor
from thalweg.quantization.online import linear_spec

SHAPES = [(64, 128), (70, 32), (100, 77), (130, 1030), (192, 2048), (64, 4200)]
"""(outputs, inputs): one panel, few steps, an odd number of inputs, more than a block, and more steps than are decoded for
all rows of a prompt."""
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 23, 24, 32, 140)
"""Fewer than a tile, one, several, on both sides of where rows share what is decoded, and more than a chunk."""
LESS = 0.83
"""Of the bytes of a weight as it is, at most, where panels have 64 steps or more."""


@pytest.fixture(scope="module")
def both(library: NativeLibrary) -> tuple[NativeLinear, NativeLinear]:
    """As weights are without the option, and with it. At each instruction set that has it."""
    made = open_library(2, library.level), open_library(2, library.level)
    if not made[1].compress_weights():
        pytest.skip(f"kernels of {library.level} read weights as they are")
    return NativeLinear(made[0]), NativeLinear(made[1])


def trained(outputs: int, inputs: int) -> Tensor:
    """Values as layers have them: about normal, some of them tiny."""
    values = np.random.default_rng(outputs * inputs).standard_normal((outputs, inputs), np.float32)
    return torch.from_numpy(values * 0.03).bfloat16()


def packed(made: NativeLinear, weight: Tensor) -> PackedWeight:
    return made.pack(QTensor(DENSE, (weight.shape[0], weight.shape[1]), {"weight": weight}))


def same(a: Tensor, b: Tensor) -> bool:
    """To the bit. NaN is equal to itself."""
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def alike(both: tuple[NativeLinear, NativeLinear], weight: Tensor) -> float:
    """Asserts that rows and products are the same. How many bytes the compressed weight takes, as a share."""
    plain, less = (packed(each, weight) for each in both)
    tokens = torch.arange(weight.shape[0], dtype=torch.int32)
    assert same(both[1].rows(tokens, less), weight)
    bias = torch.linspace(-1, 1, weight.shape[0]).bfloat16()
    for rows in ROWS:
        x = torch.from_numpy(np.random.default_rng(rows).standard_normal((rows, weight.shape[1]), np.float32)).bfloat16()
        assert same(both[0].run(x, plain, bias), both[1].run(x, less, bias)), rows
        for a, b in zip(both[0].argmax(x, plain), both[1].argmax(x, less), strict=True):
            assert torch.equal(a.nan_to_num(7), b.nan_to_num(7)), rows
    return less.bytes / plain.bytes


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_and_rows_keep_their_bits(both: tuple[NativeLinear, NativeLinear], shape: tuple[int, int]) -> None:
    assert alike(both, trained(*shape)) < (LESS if shape[1] > 64 else 0.9)


def test_zeros_and_what_has_no_leading_one_are_kept(both: tuple[NativeLinear, NativeLinear]) -> None:
    weight = trained(192, 512)
    weight[:, ::3] = 0
    weight[::2, 3::3] *= -0.0
    weight[100] = 0
    weight[5, 1], weight[5, 2] = 1e-40, -1e-40
    assert alike(both, weight) < LESS


def test_weights_of_other_exponents_are_kept_as_they_are(both: tuple[NativeLinear, NativeLinear]) -> None:
    weight = trained(128, 1024)
    odd = [float("inf"), -float("inf"), float("nan"), 3e38, -3e38, 1e-37, 1e-20, 1e20]
    for i, (value, output) in enumerate(itertools.product(odd, (0, 63, 64))):
        weight[output, 40 * i % 1024] = value
    assert alike(both, weight) < LESS


def of_steps(steps: Tensor) -> Tensor:
    """The weight of a panel whose steps have these higher bytes, u8[steps, 128]: 64 outputs by two inputs each."""
    values = (steps.to(torch.int32) << 8 | 0x41).to(torch.int16).view(torch.bfloat16)
    return values.reshape(-1, 64, 2).permute(1, 0, 2).reshape(64, -1).contiguous()


def sets(count: int, size: int, among: Tensor) -> Tensor:
    """Random subsets of some bytes, each in a step's 128 places: u8[count, 128]."""
    rng = np.random.default_rng(count)
    chosen = np.stack([rng.choice(among.numpy(), size, replace=False) for _ in range(count)])
    return torch.from_numpy(np.tile(chosen, 128)[:, :128])


@pytest.mark.parametrize("more", [0, 1])
def test_a_step_may_have_16_higher_bytes_and_no_more(both: tuple[NativeLinear, NativeLinear], more: int) -> None:
    steps = torch.full((64, 128), 0x3C, dtype=torch.uint8)
    steps[7, : 15 + more] = torch.arange(15 + more) + 0x20
    steps[63, -16:] = torch.arange(16) * 4 + 0x83
    steps[63, :112] = 0x83
    assert (alike(both, of_steps(steps)) < LESS) == (not more)


@pytest.mark.parametrize("more", [0, 1])
def test_a_panel_may_have_32_tables_and_no_more(both: tuple[NativeLinear, NativeLinear], more: int) -> None:
    steps = torch.full((128, 128), 0x3C, dtype=torch.uint8)
    among = torch.cat([torch.arange(0x24, 0x3C), torch.arange(0xA4, 0xBC)]).to(torch.uint8)
    steps[: 31 + more] = sets(31 + more, 16, among)
    assert (alike(both, of_steps(steps)) < LESS) == (not more)


def test_exponents_that_samples_miss_are_counted(both: tuple[NativeLinear, NativeLinear]) -> None:
    """Of 65,536 weights every 17th is looked at first. What those have needs a table for nearly every step, all have one."""
    first = torch.arange(0x38, 0x40)
    lying = sets(512, 12, torch.cat([first[1:], first | 0x80]).to(torch.uint8)).flatten()
    lying[::17] = 0x38
    assert alike(both, of_steps(lying.view(512, 128))) < LESS


def test_all_matrices_of_the_bundled_model_are_compressed(both: tuple[NativeLinear, NativeLinear]) -> None:
    """It was trained: its exponents are what training made of them."""
    for name, weight in load_file(Path(nano.__file__).parent / "weights" / "model.safetensors").items():
        if weight.ndim == 2:
            assert packed(both[1], weight.bfloat16()).bytes < LESS * packed(both[0], weight.bfloat16()).bytes, name


def test_a_weight_whose_exponents_are_spread_stays_dense(both: tuple[NativeLinear, NativeLinear]) -> None:
    weight = trained(192, 512)
    weight[64:128] = trained(64, 512).float().pow(9).bfloat16()
    assert alike(both, weight) == 1


def test_a_kept_weight_is_mapped_as_it_was_packed(both: tuple[NativeLinear, NativeLinear], tmp_path: Path) -> None:
    spread = trained(192, 512).float().pow(9).bfloat16()
    for weight in (trained(192, 512), spread):
        values = weight.view(torch.int16).numpy().view(np.uint16)
        sizes = []
        for each in (*both, *both):
            each._library.kept = PackedWeightCache(each._library, tmp_path / "kept")
            made = each.pack_mapped((values,), DENSE)
            each._library.kept = None
            assert made is not None
            sizes.append(made.bytes)
            assert same(each.rows(torch.arange(192, dtype=torch.int32), made), weight)
        assert sizes[:2] == sizes[2:]
        assert (sizes[0] == sizes[1]) == (weight is spread)
    assert len(list((tmp_path / "kept").iterdir())) == 4


def test_experts_and_heads_keep_their_bits(both: tuple[NativeLinear, NativeLinear]) -> None:
    """Of 5 experts, 30 of 64 rows of their last panels are zeros, and so of 3 heads."""
    count, hidden, inner, tokens = 5, 98, 81, 23
    made = []
    for one in both:
        experts, heads = NativeExperts(one._library), NativeHeads(one._library)
        gate_up = experts.pack(
            QTensor(DENSE, (count * 2 * inner, hidden), {"weight": trained(count * 2 * inner, hidden)}, count)
        )
        down = experts.pack(QTensor(DENSE, (count * hidden, inner), {"weight": trained(count * hidden, inner)}, count))
        x = trained(tokens, hidden)
        ids = torch.from_numpy(
            np.random.default_rng(3).permuted(np.tile(np.arange(count, dtype=np.int32), (tokens, 1)), axis=1)
        )
        weights = torch.full((tokens, 2), 0.5)
        through = experts.run(x, ids[:, :2].contiguous(), weights, gate_up, down, experts=count)
        each = heads.pack(QTensor(DENSE, (3 * 98, 64), {"weight": trained(3 * 98, 64)}, 3), turned=False)
        straight = heads.run(trained(tokens, 3 * 64).view(tokens, 3, 64), each, heads=3, out_features=98)
        made.append((through, straight, gate_up.bytes + down.bytes + each.bytes))
    assert same(made[0][0], made[1][0])
    assert same(made[0][1], made[1][1])
    assert made[1][2] < LESS * made[0][2]


def texts(prompts: list[str], **options: object) -> Iterator[list[int]]:
    llm = LLM(device="cpu", dtype="bfloat16", additional_config=options)
    try:
        done = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
        yield from (list(d.outputs[0].token_ids) for d in done)
    finally:
        llm.shutdown()


@pytest.mark.slow
def test_an_engine_says_the_same(both: tuple[NativeLinear, NativeLinear]) -> None:
    prompts = ["The river", "A mill stands", "Once upon a time there was a bridge over the river, and"]
    isa = both[0]._library.level
    want = list(texts(prompts, isa=isa, compress_weights=False))
    assert list(texts(prompts, isa=isa, compress_weights=True)) == want
    assert list(texts(prompts, isa=isa)) == want


def test_devices_compress_unless_told_otherwise(both: tuple[NativeLinear, NativeLinear]) -> None:
    sizes = {}
    for told in (None, True, False):
        device = (
            CpuPlatform().with_options(CpuOptions(threads=1, isa=both[0]._library.level, compress_weights=told)).open(Place())
        )
        bound = Binder(device.kernels).bind(linear, dtype="bfloat16", in_features=128, out_features=64, **linear_spec(DENSE))
        sizes[told] = bound.pack(QTensor(DENSE, (64, 128), {"weight": trained(64, 128)})).bytes
        device.close()
    assert sizes[None] == sizes[True] < LESS * sizes[False]


@pytest.mark.parametrize("isa", ["none", "portable"])
def test_where_no_kernel_reads_them_it_is_refused(isa: str) -> None:
    if isa != "none" and isa not in levels():
        pytest.skip("no compiled kernels here")
    with pytest.raises(DeviceError, match=r"compress_weights: no kernel reads such weights here .*; omit it"):
        CpuPlatform().with_options(CpuOptions(isa=isa, compress_weights=True)).open(Place())


def test_an_open_library_says_whether_it_does(library: NativeLibrary) -> None:
    fresh = open_library(1, library.level)
    assert fresh.compress_weights() == (library.level not in AS_THEY_ARE)


def test_a_plan_counts_what_kernels_hold(both: tuple[NativeLinear, NativeLinear]) -> None:
    weight, level = trained(640, 1024), both[0]._library.level
    held = packed(both[1], weight).bytes / weight.nbytes
    share = CpuPlatform().with_options(CpuOptions(isa=level)).dense_share
    assert share("bfloat16") == pytest.approx(held, rel=0.005)
    assert share("float32") == 1
    assert CpuPlatform().with_options(CpuOptions(isa=level, compress_weights=False)).dense_share("bfloat16") == 1
    assert CpuPlatform().with_options(CpuOptions(isa="portable")).dense_share("bfloat16") == 1
