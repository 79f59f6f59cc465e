"""Norms and gates that round, in the interpreter beyond the conformance kit: in a process of test_triton_library."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from thalweg.backends.triton_kernels.elementwise import act_and_mul, add_rms_norm, rms_norm
from thalweg.backends.triton_kernels.rounding import FEW_ROWS, gate_and_round, norm_and_round, round_rows
from thalweg.backends.triton_kernels.testing import InterpretPlatform
from thalweg.backends.triton_kernels.tiles import TileSizes, tiles
from thalweg.hal.platform import Place

WIDTHS = {"one program": 96, "programs share a row": 300, "several blocks": 1100}
ACTS = ("float8_e4m3fn", "int8")


@pytest.fixture(scope="module")
def sizes() -> TileSizes:
    """Of which a block holds 1,024 elements."""
    InterpretPlatform().open(Place())
    made = tiles("interpret")
    return replace(made, rows=replace(made.rows, per_warp=512))


def _draw(*shape: int) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))) * 3).to(torch.bfloat16)


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("gate", ["silu", "gelu_tanh", "silu_clamp_2"])
def test_a_gate_that_rounds_gives_the_codes_of_separate_launches(sizes: TileSizes, width: int, act: str, gate: str) -> None:
    for rows in (3, FEW_ROWS + 2):
        x = _draw(rows, 2 * width)
        x[1] = 0.0
        want, want_scale = round_rows(sizes, act_and_mul(sizes, x, act=gate), act)
        got, scale = gate_and_round(sizes, x, gate, act)
        assert torch.equal(got, want)
        assert torch.equal(scale, want_scale)
        assert scale[1] == 1.0


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_a_norm_that_rounds_gives_the_codes_of_separate_launches(sizes: TileSizes, width: int, act: str, offset: float) -> None:
    """x is a part of longer rows, as the output of a joined product is."""
    x, residual, weight = _draw(5, 2 * width)[:, :width], _draw(5, 1, width)[:, 0], _draw(width)
    normed, total = add_rms_norm(sizes, x, residual, weight, eps=1e-5, offset=offset)
    want, want_scale = round_rows(sizes, normed, act)
    got, scale, sums = norm_and_round(sizes, x, residual, weight, 1e-5, offset, act)
    assert torch.equal(got, want)
    assert torch.equal(scale, want_scale)
    assert torch.equal(sums, total)
    want, want_scale = round_rows(sizes, rms_norm(sizes, x, weight, eps=1e-5, offset=offset), act)
    got, scale, sums = norm_and_round(sizes, x, None, weight, 1e-5, offset, act)
    assert torch.equal(got, want)
    assert torch.equal(scale, want_scale)
    assert sums is x
