"""GGUF's blocks unpacked by the library, beside the same decoded by numpy and packed from codes; and rows read out of packed
codes, beside the body of the op."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from thalweg.backends.cpu.native import NativeLibrary
from thalweg.backends.cpu.native.linear import BLOCKS, NativeLinear
from thalweg.checkpoint.gguf.blocks import decode_blocks
from thalweg.checkpoint.gguf.types import TYPES
from thalweg.hal import ops
from thalweg.hal.ops.quantise import quantise
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.formats.gguf import weight_format

KINDS = {t.name: t for t in TYPES.values() if t.name in BLOCKS}
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Where a block has its numbers of 16 bits."""


def drawn(name: str, rows: int, columns: int) -> np.ndarray:
    """Any bytes, with scales as files have them: of both signs, small ones below float16's normal numbers, and 0."""
    rng, kind = np.random.default_rng(rows), KINDS[name]
    raw = rng.integers(0, 256, (rows * columns // kind.values, kind.bytes), np.uint8)
    scale = np.float16(2.0) ** rng.integers(-24, 2, len(raw)) * rng.choice([-1, 1], len(raw))
    scale[::7] = 0
    for at in HALVES[name]:
        raw[:, at : at + 2] = scale.astype("<f2")[:, None].view(np.uint8)
    return raw.reshape(rows, -1)


def coded(name: str, raw: np.ndarray) -> QTensor:
    made, form = decode_blocks(KINDS[name], raw), weight_format(name)
    data = {"codes": torch.from_numpy(made.codes), "scales": torch.from_numpy(made.scales)}
    if made.mins is not None:
        data["mins"] = torch.from_numpy(made.mins)
    return QTensor(form, made.codes.shape, data)


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_packed_as_their_codes_are(library: NativeLibrary, name: str) -> None:
    linear = NativeLinear(library)
    raw = drawn(name, 130, 512)
    w = coded(name, raw)
    parts = [raw[:30], raw[30:30], raw[30:]]
    packed, want = linear.pack_blocks(parts, name, 512, w.format), linear.pack(w)
    if packed is None:
        assert library.quads(library.context, 2 if w.format.bits == 4 else 1, 512, w.format.group)
        return
    assert packed.shape == (130, 512)
    assert packed.bytes == want.bytes
    x = torch.randn(9, 512, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(linear.run(x.to(dtype), packed), linear.run(x.to(dtype), want))


def test_blocks_of_other_kinds_are_left_to_who_decodes_them(library: NativeLibrary) -> None:
    linear = NativeLinear(library)
    raw = drawn("Q4_0", 64, 64)
    assert linear.pack_blocks([raw], "IQ4_NL", 64, weight_format("IQ4_NL")) is None
    rounding = WeightFormat("int", 4, 32, act="int8_per_group")
    assert linear.pack_blocks([raw], "Q4_0", 64, rounding) is None


FORMATS = {
    "int4": WeightFormat("int", 4, 32),
    "int4 zeros": WeightFormat("int", 4, 64, symmetric=False),
    "int4 minima": WeightFormat("int", 4, 32, symmetric=False, mins=True),
    "int8": WeightFormat("int", 8, 0),
    "int8 zeros": WeightFormat("int", 8, 32, symmetric=False),
    "int8 minima": WeightFormat("int", 8, 16, symmetric=False, mins=True),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", [*FORMATS, "Q4_K", "Q5_K", "Q6_K", "Q8_0"])
def test_rows_are_read_out_of_packed_codes(library: NativeLibrary, name: str, dtype: str) -> None:
    linear = NativeLinear(library)
    if name in FORMATS:
        w = quantise(torch.randn(130, 192, generator=torch.Generator().manual_seed(1)), FORMATS[name])
    else:
        w = coded(name, drawn(name, 130, 512))
    spec = {"dtype": dtype, "weight": w.format, "tied": True, "vocab": 130, "size": w.shape[1], "group": w.format.group}
    refused = linear.has_rows(spec)
    assert (refused is not None) == bool(
        library.quads(library.context, 2 if w.format.bits == 4 else 1, w.shape[1], w.format.group)
    )
    assert linear.has_rows(spec | {"tied": False}) is not None
    if refused:
        return
    tokens = torch.tensor([0, 129, 63, 64, 17, 17], dtype=torch.int32)
    want = ops.embed.reference(tokens, dict(w.data), group=w.format.group, dtype=dtype)
    got = linear.rows(tokens, linear.pack(w), group=w.format.group, dtype=dtype)
    assert got.dtype == want.dtype
    if name == "int8 minima":  # codes above 127 and their minima were shifted
        torch.testing.assert_close(got, want, rtol=2**-7 if dtype == "bfloat16" else 1e-5, atol=1e-5)
    else:
        assert torch.equal(got, want)
