"""4-bit weights as checkpoints hold them, written by the library that defines these files, compressed-tensors: our rounding
gives its codes and scales, its packed bytes mean what we say they do, and our canonical form holds what is in them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.peers import compressed
from thalweg.hal.ops.quantise import E2M1, dequantise, quantise
from thalweg.hal.weights import WeightFormat

NVFP4 = WeightFormat("float", 4, 16, scale_dtype="float8_e4m3fn")
MXFP4 = WeightFormat("float", 4, 32)
LEVELS = np.array([*E2M1, *(-x for x in E2M1)])
"""Value of a 4-bit code: its highest bit is the sign."""


@pytest.fixture(autouse=True)
def _uncompiled() -> Iterator[None]:
    """Some of the library's functions are compiled at their first call, which takes longer than all tests here."""
    with torch.compiler.set_stance("force_eager"):
        yield


def drawn() -> torch.Tensor:
    """Rows of very different size, one with an outlier, one of nothing but what lies in the middle of two levels."""
    weight = torch.randn(24, 128) * torch.logspace(-3, 0, 24)[:, None]
    middles = torch.tensor([(a + b) / 2 for a, b in itertools.pairwise(E2M1)] + [6.0])
    weight[3, 7], weight[5] = 6.0, torch.cat([middles, -middles]).repeat(8) / 4
    return weight


KINDS: dict[str, dict[str, Any]] = {
    "nvfp4-pack-quantized": {
        "type": "float", "strategy": "tensor_group", "group_size": 16, "scale_dtype": torch.float8_e4m3fn,
    },
    "mxfp4-pack-quantized": {"type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
    "pack-quantized": {"type": "int", "strategy": "group", "group_size": 32, "symmetric": False, "zp_dtype": torch.int8},
}  # fmt: skip
"""What the library calls a format, and what it is told of it."""


@functools.cache
def library() -> SimpleNamespace:
    """Imported by the first test: it takes seconds, which nobody should pay who only lists tests."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    schemes = {
        kind: QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(num_bits=4, **how)) for kind, how in KINDS.items()
    }
    return SimpleNamespace(
        schemes=schemes, compressor=BaseCompressor.get_value_from_registry, floats=unpack_fp4_from_uint8,
        integers=unpack_from_int32, dequantise=dequantize, scales=calculate_qparams, scale=generate_gparam,
    )  # fmt: skip


def file_of(kind: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors of a layer with this weight, by the name that a file has them under."""
    how, groups = library().schemes[kind], weight.unflatten(-1, (-1, KINDS[kind]["group_size"]))
    whole = {"weight_global_scale": library().scale(weight.amin(), weight.amax())} if kind.startswith("nv") else {}
    scale, zero = library().scales(groups.amin(-1), groups.amax(-1), how.weights, *whole.values())
    held = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero, **whole}
    return dict(library().compressor(kind).compress(held, how))


def pairs(packed: torch.Tensor) -> np.ndarray:
    """Bytes [out, in / 2] -> 4-bit codes [out, in]: of two inputs the first is in the lower half."""
    raw = packed.numpy()
    return np.stack([raw & 15, raw >> 4], -1).reshape(len(raw), -1)


def floats(packed: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(LEVELS[pairs(packed)]).to(torch.float8_e4m3fn)


def test_nvfp4_is_rounded_to_the_codes_and_the_scales_that_are_in_files() -> None:
    weight = drawn()
    file, made = file_of("nvfp4-pack-quantized", weight), quantise(weight, NVFP4)
    assert file["weight_scale"].dtype == torch.float8_e4m3fn
    assert torch.equal(made.data["scales"].view(torch.uint8), file["weight_scale"].view(torch.uint8))
    torch.testing.assert_close(made.data["scale"], (1 / file["weight_global_scale"]).expand(len(weight), 1), rtol=1e-6, atol=0)
    assert torch.equal(made.data["codes"].float(), floats(file["weight_packed"]).float())


def test_an_nvfp4_file_is_held_and_means_the_same() -> None:
    """Its scale of the tensor divides, ours multiplies."""
    weight = drawn()
    file = file_of("nvfp4-pack-quantized", weight)
    data = {
        "codes": floats(file["weight_packed"]), "scales": file["weight_scale"],
        "scale": (1 / file["weight_global_scale"]).reshape(1, 1),
    }  # fmt: skip
    codes = library().floats(file["weight_packed"], *weight.shape, torch.float32)
    how = library().schemes["nvfp4-pack-quantized"].weights
    want = library().dequantise(codes, file["weight_scale"].float(), args=how, global_scale=file["weight_global_scale"])
    torch.testing.assert_close(dequantise(data, 16, torch.float32), want, rtol=1e-6, atol=0)
    assert (want - weight).abs().max() < 0.2 * weight.abs().max()


def test_an_mxfp4_file_is_held_means_the_same_and_has_our_codes_where_it_has_our_scale() -> None:
    """A file's scales are exponents in 8 bits, above -127. Its largest value may lie beyond the last level, up to 7 times the
    scale, and is cut; ours rounds scales up, so that nothing is: groups whose largest is between 6 and 7 differ."""
    weight = drawn()
    file, made = file_of("mxfp4-pack-quantized", weight), quantise(weight, MXFP4)
    assert file["weight_scale"].dtype == torch.uint8
    data = {"codes": floats(file["weight_packed"]), "scales": torch.exp2(file["weight_scale"].float() - 127)}
    codes = library().floats(file["weight_packed"], *weight.shape, torch.float32)
    want = library().dequantise(codes, data["scales"], args=library().schemes["mxfp4-pack-quantized"].weights)
    torch.testing.assert_close(dequantise(data, 32, torch.float32), want, rtol=0, atol=0)
    most = weight.unflatten(-1, (-1, 32)).abs().amax(-1) / data["scales"]
    same = made.data["scales"] == data["scales"]
    assert torch.equal(same, most <= 6)
    assert 0.5 < same.float().mean() < 1
    inputs = same.repeat_interleave(32, 1)
    assert torch.equal(made.data["codes"].float()[inputs], data["codes"].float()[inputs])


def test_an_int4_file_is_held_and_means_the_same() -> None:
    """Eight codes to a word, the first in its lowest bits, of zero points eight outputs; in files both begin at -8."""
    weight = drawn()
    file = file_of("pack-quantized", weight)

    def nibbles(words: torch.Tensor) -> torch.Tensor:
        raw = words.numpy().view(np.uint32)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
        return torch.from_numpy(raw.reshape(len(words), -1).astype(np.uint8))

    data = {
        "codes": nibbles(file["weight_packed"]), "scales": file["weight_scale"],
        "zeros": nibbles(file["weight_zero_point"].t().contiguous()).t(),
    }  # fmt: skip
    want = library().compressor("pack-quantized").decompress(file, library().schemes["pack-quantized"])["weight"]
    torch.testing.assert_close(dequantise(data, 32, torch.float32), want, rtol=1e-6, atol=0)
    made = dequantise(quantise(weight, WeightFormat("int", 4, 32, symmetric=False)).data, 32, torch.float32)
    assert (made - weight).square().sum() < (want - weight).square().sum()  # it fits scales and zero points


def test_scales_of_int4_are_the_library_s() -> None:
    """Groups of 64, whose range sets scale and zero point."""
    weight, group = drawn(), 64
    groups = weight.unflatten(-1, (-1, group))
    scale, zero = library().scales(groups.amin(-1), groups.amax(-1), library().schemes["pack-quantized"].weights)
    made = quantise(weight, WeightFormat("int", 4, group, symmetric=False)).data
    torch.testing.assert_close(made["scales"], scale, rtol=2**-8, atol=0)
    assert torch.equal(made["scales"], made["scales"].bfloat16().float())  # which a file of float32 need not have
    codes = (groups / scale[..., None] + zero[..., None].float()).round().clamp(-8, 7) + 8
    assert (made["codes"].int() - codes.flatten(1).int()).abs().max() <= 1  # it adds zero points before it rounds
    assert (made["zeros"].int() - zero.int() - 8).abs().max() <= 1


def test_weights_made_for_other_engines_are_packed_as_their_library_packs() -> None:
    weight = torch.randn(6, 256).bfloat16()
    made = compressed.int4(weight)
    codes = library().integers(made["_packed"], 4, torch.Size(weight.shape))
    scale = made["_scale"].float().repeat_interleave(compressed.GROUP, 1)
    assert torch.equal(codes.float(), (weight.float() / scale).round().clamp(-8, 7))
