"""The Triton library without a GPU: tile tables, what attention plans, every kernel interpreted, the main ones compiled."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from thalweg.backends.triton_kernels.tiles import FOURS, OPERANDS, known_architectures, nearest, of_any_rows, tiles
from thalweg.hal.attention import AttnSpec
from thalweg.hal.step import StepBatch, StepShape
from thalweg.hal.testing.sequences import batch_of
from thalweg.hal.weights import WeightFormat

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PLATFORM = "thalweg.backends.triton_kernels.testing:InterpretPlatform"
LONG = "test_a_row and (draw or truncate or route or logprobs or (experts and (bfloat16 or int or float4 or float8)))"
"""Those of sampling and routing have a program for each row, whatever the batch is."""
NIGHTLY = pytest.mark.nightly
SPEC = AttnSpec(8, 2, 64, 0.125, "bfloat16")


def _run(*command: str, **more: str) -> str:
    """Its output. Interpreting or compiling is settled when Triton is imported, so each is a process of its own."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"OMP_NUM_THREADS": "1"} | more
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def _kit(*args: str) -> str:
    return _run("-m", "pytest", "-p", "no:cacheprovider", "--pyargs", "thalweg.hal.testing", f"--platform={PLATFORM}", *args)


@pytest.mark.slow
@pytest.mark.parametrize("part", [*(pytest.param(part, marks=NIGHTLY) for part in (1, 2, 4)), 3])
def test_ops_and_device_pass_the_conformance_kit_in_the_interpreter(part: int) -> None:
    """Refused are the other kernels' weight formats, inputs rounded by groups, experts without gates, and experts of
    one format or two where a kernel runs the other. Left out are rows that take long."""
    out = _kit("-q", "-rs", "-k", f"(test_ops or test_device) and not ({LONG})", "--part", f"{part}/4")
    expected = (
        "runs (dense|int8|int4|float8|float4|nvfp4|table4) weights|runs groups that are|runs two formats, not"
        "|holds all matrices in one|runs experts with gates"
    )
    assert not re.findall(rf"triton\S* refuses: (?!{expected})", out)


@pytest.mark.slow
@pytest.mark.parametrize("part", [1, pytest.param(2, marks=NIGHTLY)])
def test_attention_passes_the_conformance_kit_in_the_interpreter(part: int) -> None:
    """Chosen cases; all of them take minutes of one core: docs/performance.md has the command, in parts."""
    _kit("-q", "-k", "test_attention and (window or int8 or e4m3) and 16 and float32 and not chunking", "--part", f"{part}/2")


@pytest.mark.nightly
def test_latent_attention_passes_the_conformance_kit_in_the_interpreter() -> None:
    """Served by the kernels, both of them, in both dtypes: nothing is refused."""
    out = _kit("-v", "-rs", "-k", "test_attention and latent and (step_of or (mixed and -16)) and not chunking")
    assert re.search(r"\b8 passed", out), out
    assert "skipped" not in out


@pytest.mark.nightly
@pytest.mark.parametrize("float8", ["float8_e4m3fn", "float8_e4m3fnuz"])
def test_eight_bit_floats_of_a_target_pass_the_conformance_kit_in_the_interpreter(float8: str) -> None:
    """As they lie in memory where the target multiplies them itself: weights, rounded inputs, caches."""
    cases = "(test_ops and (linear or experts) and float8 and test_kernel_gives) or (test_attention and e4m3 and step_of)"
    _kit("-q", "--platform-options", json.dumps({"float8": float8}), "-k", cases)


@pytest.mark.nightly
def test_rows_of_experts_are_the_same_bits_in_any_batch_in_the_interpreter() -> None:
    """One case of each kernel. All cases are minutes of a core."""
    each = (
        "(silu_cut and triton)", "(int8-row and triton-int8 and not (down or elsewhere))", "(int4-g64 and triton-int4)",
        "(float8-row and triton-float8)", "(silu-float4-g32 and triton-float4 and not down)",
        "(down-int8-g16 and triton-mixed)", "(silu_clamp and triton)",
    )  # fmt: skip
    out = _kit("-v", "-k", f"test_a_row and experts and not lora and bfloat16 and not variant and ({' or '.join(each)})")
    assert re.search(rf"\b{len(each)} passed", out), out


@pytest.mark.nightly
@pytest.mark.parametrize(
    "part",
    [
        "interpreted.py -k partial_results",
        "interpreted.py -k not(partial_results)",
        "interpreted_experts.py",
        "interpreted_joins.py",
        "interpreted_rounding.py",
    ],
)
def test_what_the_kit_leaves_out_in_the_interpreter(part: str) -> None:
    file, *chosen = part.split()
    _run("-m", "pytest", "-p", "no:cacheprovider", "-q", str(HERE / file), *chosen, TRITON_INTERPRET="1")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_90", *(pytest.param(arch, marks=NIGHTLY) for arch in ("sm_80", "gfx942"))])
def test_attention_compiles_to_matrix_instructions_within_the_limits_of_a_device(arch: str) -> None:
    out = _run("ci/gpu/compile.py", "--quick", "--arch", arch)
    assert ", 0 with problems" in out
    if arch == "sm_90":  # a prompt's keys are loaded while those before them are met, and not only then
        (ahead,) = re.findall(r"attend\[8b exact mixed\].* (\d+)  ok", out)
        assert int(ahead) >= 2


@pytest.mark.nightly
def test_each_kernel_compiles_for_two_more_devices() -> None:
    """Every launch for all eight is most of an hour: docs/performance.md has the command."""
    out = _run("ci/gpu/compile.py", "--each", "--arch", "sm_100", "gfx1201")
    assert ", 0 with problems" in out


def test_codes_of_another_eight_bit_float_mean_half_of_what_they_mean_here() -> None:
    """The target of gfx942 reads float8_e4m3fnuz: each code, with one exception for each -0 and NaN, is half its value."""
    from thalweg.backends.triton_kernels.codes import without_negative_zero

    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    want = codes.view(torch.float8_e4m3fn).to(torch.float32)
    got = without_negative_zero(codes).view(torch.float8_e4m3fnuz).to(torch.float32)
    torch.testing.assert_close(got * 2, want, rtol=0, atol=0, equal_nan=True)
    assert got.nan_to_num().abs().max() == 224
    assert without_negative_zero(codes).unique().numel() == 254


@pytest.mark.parametrize("group", [0, -1, 32])
def test_weights_of_float8_are_packed_as_their_target_reads_them(group: int) -> None:
    from thalweg.backends.triton_kernels import quantised
    from thalweg.hal.ops.quantise import dequantise, quantise

    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    weight[0, :4] = -0.0
    made = quantise(weight, WeightFormat("float", 8, group))
    want = dequantise(made.data, group, torch.float32)
    for arch, kind in (("sm_90", torch.float8_e4m3fn), ("gfx942", torch.float8_e4m3fnuz)):
        packed = quantised.pack(tiles(arch), made)
        scales = packed["scales"].t()
        wide = scales if group <= 0 else scales.repeat_interleave(group, 1)
        assert tiles(arch).float8 == str(kind).removeprefix("torch.")
        torch.testing.assert_close(packed["codes"].view(kind).to(torch.float32) * wide, want, rtol=0, atol=0)


def test_caches_of_devices_that_read_codes_otherwise_do_not_exchange_blocks() -> None:
    from thalweg.backends.triton_kernels.attention import TritonPagedAttention

    spec = replace(SPEC, kv_dtype="float8_e4m3fn")
    one, other = (TritonPagedAttention(tiles(arch), True).layout(spec, 16) for arch in ("gfx942", "gfx950"))
    assert one.shape == other.shape
    assert one.signature != other.signature


def test_tiles_by_rows_can_be_turned_off() -> None:
    for arch in known_architectures():
        t, off = tiles(arch), of_any_rows(tiles(arch))
        assert off.attention.exact_prefill == t.attention.exact, arch
        for operands, cols in itertools.product(OPERANDS, (16, 4096, 28672)):
            made = {off.product.choose(operands, rows, cols) for rows in (1, 64, 300, 8192)}
            assert made == {t.product.base(cols)}, arch


def test_every_tile_file_is_complete_and_every_known_device_has_one() -> None:
    for arch in known_architectures():
        t = tiles(arch)
        latent = t.attention.latent
        assert t.float8 in ("", "float8_e4m3fn", "float8_e4m3fnuz"), arch
        for launch in (
            t.attention.decode, t.attention.prefill, t.attention.exact, latent.decode, latent.prefill, latent.exact,
        ):  # fmt: skip
            assert launch.rows >= 16, arch
            assert launch.keys >= 16, arch
        assert 32 % t.vocab.bits == 0, arch
        assert t.attention.split % max(launch.keys, t.attention.exact.keys, latent.decode.keys, latent.exact.keys) == 0, arch


SHOWN = {"sm_90": ("dense",), "interpret": ("dense", "int8", "float8", "codes")}
"""Where a row's bits were equal in tiles of 16 rows and of 64, which take other matrix instructions."""


def test_the_tiles_of_a_product_differ_in_what_changes_no_sum() -> None:
    """One `inner`, and of what a warp group multiplies at once, 64 rows, all take less or all take that much: but for integers,
    whose sums are exact, and where a device has shown it."""
    for arch, operands in itertools.product(known_architectures(), OPERANDS):
        p = tiles(arch).product
        shapes = [*getattr(p, operands), p.base(16), p.base(1 << 20)]
        if operands == "int8" or operands in SHOWN.get(arch, ()):
            continue
        if operands in FOURS:  # a chunk has its own length, and the weight's columns are the rows of the instruction
            assert not arch.startswith("sm_") or len({t.cols >= 64 for t in getattr(p, operands)}) <= 1, arch
            continue
        assert {t.inner for t in shapes} == {p.inner}, (arch, operands)
        assert len({t.rows >= 64 for t in shapes}) == 1, (arch, operands)


REAL = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (5120, 2048), (2048, 2048), (128256, 4096)]
"""(columns, inputs) of weights that people serve."""
ROWS = [*range(1, 18), *range(31, 34), *range(63, 66), *range(127, 130), *range(255, 258), 511, 1000, 2048, 4097]


def test_weights_that_people_serve_meet_every_tile_of_a_product() -> None:
    """Else the row test on a device (ci/gpu/rows.py) would compare a tile with itself."""
    for arch, operands in itertools.product(set(known_architectures()) - {"interpret"}, OPERANDS):
        p = tiles(arch).product
        met = {p.choose(operands, rows, cols, width) for cols, width in REAL for rows in ROWS}
        assert met >= set(getattr(p, operands)), (arch, operands)


def test_prompts_take_exact_tiles_whose_rows_meet_their_keys_as_in_a_decode() -> None:
    for arch in known_architectures():
        a = tiles(arch).attention
        assert a.exact_prefill.keys == a.exact.keys, arch
        assert a.exact_prefill.rows * a.exact.warps == a.exact.rows * a.exact_prefill.warps, arch


def test_a_product_takes_a_tile_that_sets_all_of_a_device_going() -> None:
    p = tiles("sm_90").product

    def sizes(operands: str, rows: int, cols: int) -> tuple[int, int]:
        t = p.choose(operands, rows, cols)
        return t.rows, t.cols

    assert sizes("dense", 1, 4096) == sizes("dense", 16, 128256) == (16, 32)
    assert sizes("dense", 64, 6144) == (64, 32)
    assert sizes("dense", 64, 28672) == (64, 128)
    assert sizes("dense", 128, 28672) == sizes("dense", 512, 4096) == (128, 128)
    assert p.choose("dense", 2048, 4096).cut(32) == replace(p.choose("dense", 2048, 4096), rows=32, cols=32)


def test_products_have_no_cliff_between_decodes_and_prompts() -> None:
    """From 129 to 512 rows a weight's tile is read by no fewer rows than at 128: small tiles read the inputs again for every
    few columns."""
    for arch, operands, cols in itertools.product(
        set(known_architectures()) - {"interpret"}, ("dense", "int8", "float8"), (4096, 6144, 28672)
    ):  # fmt: skip
        p = tiles(arch).product
        area = [t.rows * t.cols for t in (p.choose(operands, rows, cols) for rows in (128, 192, 256, 384, 512, 1024))]
        assert area == sorted(area), (arch, operands, cols)


def test_prompts_in_eight_bits_take_tiles_as_large_as_dense_ones() -> None:
    for arch, operands in itertools.product(
        ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950"), ("int8", "float8")
    ):
        t = tiles(arch).product.choose(operands, 2048, 4096)
        assert t.rows * t.cols >= 128 * 128, (arch, operands)


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ("sm_90", "sm_90"), ("sm_90a", "sm_90"), ("sm_86", "sm_80"), ("sm_103", "sm_100"), ("sm_121", "sm_120"),
        ("sm_75", "sm_80"), ("gfx90a", "gfx90a"), ("gfx941", "gfx90a"), ("gfx955", "gfx950"), ("gfx1151", "gfx1100"),
        ("gfx1200", "gfx1100"), ("xe3", "xe2"),
    ],
)  # fmt: skip
def test_a_device_without_tiles_uses_those_of_its_nearest_relative(asked: str, served: str) -> None:
    assert nearest(asked) == served
    assert tiles(asked).arch == served


def test_a_device_of_no_known_family_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"mystery9.*sm_90"):
        tiles("mystery9")


def _batch(context: list[int], query: list[int], uniform: int = 0) -> StepBatch:
    batch = batch_of(np.zeros((len(query), 64), np.int32), context, query)
    batch.uniform = uniform
    return batch


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("query", [[1, 40, 1, 300, 2], [513], [1, 1], [17, 1]])
def test_the_plan_covers_every_token_of_every_prefill_once(query: list[int], exact: bool) -> None:
    from thalweg.backends.triton_kernels.attention import TritonPagedAttention

    backend = TritonPagedAttention(tiles("sm_90"), exact)
    plan = backend.metadata(_batch([5] * len(query), query), 0, SPEC, None)
    per = 128 // 4
    covered = {
        (s, first + i) for s, first in plan.get("tiles", np.empty((0, 2), int)).tolist() for i in range(per)
        if first + i < query[s]
    }  # fmt: skip
    assert covered == {(s, i) for s, n in enumerate(query) if n > 1 for i in range(n)}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("query", "uniform"), [([1, 40, 1, 300, 2], 0), ([1, 1], 0), ([64, 64], 64), ([4, 4], 4)])
def test_a_plan_made_on_the_device_has_the_tiles_of_one_made_on_the_host(query: list[int], uniform: int, exact: bool) -> None:
    """In the order of sequences. No value of the batch decides a size: it is made of arrays without values too."""
    from thalweg.backends.triton_kernels.attention import TritonPagedAttention

    backend, batch = TritonPagedAttention(tiles("sm_90"), exact), _batch([5] * len(query), query, uniform)
    shape = StepShape(sum(query), len(query), 64, uniform=uniform > 0)
    want = backend.metadata(batch, 0, SPEC, shape)
    arrays = replace(batch, tokens=torch.from_numpy(batch.tokens), query=torch.from_numpy(batch.query))
    got = backend.plan_on_device(arrays, 0, SPEC)
    assert {k: sorted(v.tolist()) for k, v in got.items()} == {k: sorted(v.tolist()) for k, v in want.items()}
    nowhere = replace(batch, tokens=arrays.tokens.to("meta"), query=arrays.query.to("meta"))
    assert {k: v.shape for k, v in backend.plan_on_device(nowhere, 0, SPEC).items()} == {k: v.shape for k, v in want.items()}


def test_the_plan_of_a_bucket_has_the_same_sizes_for_every_batch() -> None:
    from thalweg.backends.triton_kernels.attention import TritonPagedAttention

    backend, shape = TritonPagedAttention(tiles("sm_90"), False), StepShape(256, 8, 64)
    made = [
        backend.metadata(_batch([9] * len(q), q, u).pad(shape), 0, SPEC, shape)
        for q, u in (([1, 40, 100], 0), ([1, 1, 1], 1), ([249], 249), ([32] * 7, 32))
    ]
    assert {tuple((k, v.shape) for k, v in p.items()) for p in made} == {(("tiles", (256 // 32 + 8, 2)),)}


def test_a_decode_bucket_needs_no_tiles() -> None:
    from thalweg.backends.triton_kernels.attention import TritonPagedAttention

    shape = StepShape(8, 8, 64, uniform=True)
    for exact in (False, True):
        assert (
            TritonPagedAttention(tiles("sm_90"), exact).metadata(_batch([9] * 3, [1] * 3, 1).pad(shape), 0, SPEC, shape) == {}
        )
