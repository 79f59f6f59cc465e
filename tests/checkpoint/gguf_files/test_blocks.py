"""Blocks against the `gguf` package: the same float32, bit for bit, for every type that it decodes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from thalweg.checkpoint.gguf.blocks import LAYOUTS, decode_blocks, dense
from thalweg.checkpoint.gguf.types import TYPES
from thalweg.hal.ops.quantise import dequantise
from thalweg.quantization.formats.gguf import Gguf, weight_format

BLOCKS = {t.name: t for t in TYPES.values() if not t.dense}
OURS_ALONE = ("Q1_0", "Q2_0")
"""Types that the package does not decode."""


def _random(name: str, rows: int = 24, blocks: int = 3) -> np.ndarray:
    """Any bits at all, but for scales that are no numbers."""
    rng = np.random.default_rng(len(name))
    raw = rng.integers(0, 256, (rows, blocks * BLOCKS[name].bytes), dtype=np.uint8)
    raw[0] = 0
    raw[1] = 255
    return raw


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """NaN has a sign that no sum keeps."""
    a, b = np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b, np.float32)
    return np.array_equal(np.isnan(a), np.isnan(b)) and np.array_equal(
        np.nan_to_num(a, nan=0).view(np.uint32), np.nan_to_num(b, nan=0).view(np.uint32)
    )


def test_sizes_are_those_of_the_package():
    theirs = {t.name: size for t, size in gguf.GGML_QUANT_SIZES.items()}
    for t in TYPES.values():
        assert theirs.get(t.name, (t.values, t.bytes)) == (t.values, t.bytes)
    assert {i: t.name for i, t in TYPES.items() if t.name not in OURS_ALONE} == {
        t.value: t.name for t in gguf.GGMLQuantizationType if t.name not in ("Q8_1", "Q8_K", *OURS_ALONE)
    }


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the package's own
@pytest.mark.parametrize("name", sorted(BLOCKS.keys() - set(OURS_ALONE)))
def test_values_are_those_of_the_package(name):
    raw = _random(name)
    want = gguf.dequantize(raw, gguf.GGMLQuantizationType[name])
    assert _same_bits(dense(BLOCKS[name], raw), want)


@pytest.mark.parametrize(("name", "bits"), [("Q1_0", 1), ("Q2_0", 2)])
def test_types_that_the_package_lacks_follow_their_definition(name, bits):
    """A float16, then codes from the lowest bits of each byte on; one bit is -1 or 1, two are -1 to 2."""
    raw = _random(name)
    raw[1] = 3
    for row in (1, 5):
        block = raw[row, : BLOCKS[name].bytes]
        scale = float(block[:2].copy().view("<f2")[0])
        codes = [int(byte) >> shift & (1 << bits) - 1 for byte in block[2:] for shift in range(0, 8, bits)]
        want = np.array([(2 * c - 1 if bits == 1 else c - 1) * scale for c in codes], np.float32)
        np.testing.assert_array_equal(dense(BLOCKS[name], raw)[row, : len(codes)], want)


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_codes_fit_into_the_bits_that_they_are_said_to_need(name):
    made, layout = decode_blocks(BLOCKS[name], _random(name)), LAYOUTS[name]
    low, high = (0, 1 << layout.bits) if layout.mins else (-(1 << layout.bits - 1), 1 << layout.bits - 1)
    assert low <= int(made.codes.min()) <= int(made.codes.max()) < high
    assert made.codes.dtype == (np.uint8 if layout.mins else np.int8)
    assert (made.mins is not None) == layout.mins
    assert made.scales.shape[1] * layout.group == made.codes.shape[1]


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_what_layers_hold_is_worth_the_same(name):
    """Canonical codes, scales and minima, turned back by the op's own definition."""
    import torch

    raw = _random(name)
    raw[1] = 7  # 255 makes scales that are no numbers
    layer = Gguf({"types": {"l": name}})
    shape = (len(raw), 3 * BLOCKS[name].values)
    held_as = layer.read("l", shape, lambda suffix: torch.from_numpy(raw))
    assert held_as.format == weight_format(name) == layer.of("linear", "l.weight")
    got = dequantise(held_as.data, held_as.format.group, torch.float32).numpy()
    assert _same_bits(got + 0.0, dense(BLOCKS[name], raw) + 0.0)  # a 4-bit float has a zero with a sign
