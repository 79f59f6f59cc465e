"""AMD Quark's checkpoints, from their definition in numpy (its package wants a stack that is not here)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from by_hand import LAYER, counted, dense, drawn, logprobs, read, reader, rewrite, simulated, source, weights
from test_fp8 import E2M1

from thalweg.errors import UnsupportedModelError
from thalweg.quantization import registry

FP8 = torch.float8_e4m3fn
OUT, IN = 24, 64


def said(weight: Any, inputs: Any = None, **more: Any) -> dict[str, Any]:
    return {"quant_method": "quark", "export": {"pack_method": "reorder", "kv_cache_group": []}, "exclude": ["lm_head"],
            "global_quant_config": {"weight": weight, "input_tensors": inputs, "bias": None, "output_tensors": None},
            "layer_quant_config": {}, "layer_type_quant_config": {}} | more  # fmt: skip


def plain(dtype: str, qscheme: str, **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "qscheme": qscheme, "symmetric": True, "is_dynamic": False} | more


@pytest.mark.parametrize("by", ["per_tensor", "per_channel"])
@pytest.mark.parametrize(("dtype", "act"), [("fp8_e4m3", "float8_e4m3fn"), ("int8", "int8")])
@pytest.mark.parametrize("dynamic", [True, False])
def test_8_bits(dtype, act, by, dynamic):
    weight, top = drawn(OUT, IN), 448 if dtype == "fp8_e4m3" else 127
    scale = weight.abs().amax(1) / top if by == "per_channel" else weight.abs().amax() / top
    ratio = weight / scale.reshape(-1, 1)
    codes = ratio.to(FP8) if dtype == "fp8_e4m3" else ratio.round().char()
    tensors = {"weight": codes, "weight_scale": scale, "weight_zero_point": torch.zeros(OUT, dtype=torch.int8)}
    if not dynamic:
        tensors |= {"input_scale": torch.tensor([0.03]), "input_zero_point": torch.zeros(1, dtype=torch.int8)}
    inputs = plain(dtype, "per_channel" if dynamic else "per_tensor", is_dynamic=dynamic)
    got = read(reader(said(plain(dtype, by), inputs), tensors), tensors, (OUT, IN))
    assert torch.equal(dense(got), codes.float() * scale.reshape(-1, 1))
    assert got.format.act == (act if dynamic else f"{act}_static")


def codes_of(bits: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << bits, (OUT, IN)).astype(np.uint8)


def value(code: int, exponent: int, mantissa: int) -> float:
    """Of a small float without infinities, by its definition: the bias is 2**(exponent - 1) - 1."""
    bias = (1 << exponent - 1) - 1
    e, m = code >> mantissa & (1 << exponent) - 1, code & (1 << mantissa) - 1
    magnitude = m / (1 << mantissa) * 2.0 ** (1 - bias) if e == 0 else (1 + m / (1 << mantissa)) * 2.0 ** (e - bias)
    return -magnitude if code >> exponent + mantissa else magnitude


@pytest.mark.parametrize(("dtype", "exponent", "mantissa"), [("fp4", 2, 1), ("fp6_e2m3", 2, 3), ("fp6_e3m2", 3, 2)])
@pytest.mark.parametrize("inputs", ["", "fp4", "fp8_e4m3", "static"])
def test_micro_scales(dtype, exponent, mantissa, inputs):
    bits = 1 + exponent + mantissa
    codes, powers = codes_of(bits), np.random.default_rng(2).integers(115, 131, (OUT, 2)).astype(np.uint8)
    table = np.array([value(c, exponent, mantissa) for c in range(1 << bits)], np.float32)
    want = table[codes] * np.repeat(np.exp2(powers.astype(np.float32) - 127), 32, 1)
    stream = np.unpackbits(codes[..., None], axis=-1, bitorder="little")[..., :bits].reshape(OUT, -1)
    tensors = {
        "weight": torch.from_numpy(np.packbits(stream, axis=-1, bitorder="little")),
        "weight_scale": torch.from_numpy(powers),
    }
    group = {"group_size": 32, "scale_format": "e8m0"}
    how = plain(inputs, "per_group", is_dynamic=True, **group) if inputs else None
    if inputs == "static":
        how, tensors["input_scale"] = plain("fp8_e4m3", "per_tensor"), torch.tensor(0.5)
    got = read(reader(said(plain(dtype, "per_group", **group), how), tensors), tensors, (OUT, IN))
    np.testing.assert_array_equal(dense(got).numpy(), want)
    acts = {"": "", "fp4": "mxfp4_even", "fp8_e4m3": "mxfp8_even", "static": "float8_e4m3fn_static"}
    assert got.format.act == acts[inputs]


def test_nvfp4():
    codes, rng = codes_of(4), np.random.default_rng(4)
    scales = torch.from_numpy(rng.uniform(0.5, 400, (OUT, IN // 16)).astype(np.float32)).to(FP8)
    outer = torch.tensor(0.0007)
    tensors = {"weight": torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4), "weight_scale": scales, "weight_scale_2": outer,
               "input_scale_2": torch.tensor(0.02)}  # fmt: skip
    two = [plain("fp4", "per_group", group_size=16), plain("fp8_e4m3", "per_tensor")]
    got = read(reader(said(two, [two[0] | {"is_dynamic": True}, two[1]]), tensors), tensors, (OUT, IN))
    assert torch.equal(dense(got), torch.from_numpy(E2M1[codes]) * (scales.float() * outer).repeat_interleave(16, 1))
    assert got.format.act == "nvfp4"
    assert torch.equal(got.data["input_scale"], torch.tensor([[0.02]]))


def packed(codes: np.ndarray, order: str) -> torch.Tensor:
    """[rows, out] -> int32 [rows, out / 8]. "reorder": nibble k of a word holds its output (0, 2, 4, 6, 1, 3, 5, 7)[k]."""
    places = (0, 2, 4, 6, 1, 3, 5, 7) if order == "reorder" else range(8)
    grown = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 8))).reshape(len(codes), -1, 8).astype(np.uint32)
    words = sum((grown[..., p] & 15) << np.uint32(4 * k) for k, p in enumerate(places))
    return torch.from_numpy(np.asarray(words, np.uint32).view(np.int32))


@pytest.mark.parametrize("order", ["reorder", "order"])
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("outputs", [24, 20])
def test_int4_in_both_orders(order, dtype, outputs):
    rng = np.random.default_rng(6)
    low = -8 if dtype == "int4" else 0
    codes = rng.integers(low, low + 16, (IN, outputs))
    scales = rng.uniform(0.01, 1, (2, outputs)).astype(np.float32)
    zeros = rng.integers(0, 16, (2, outputs)) if dtype == "uint4" else np.zeros((2, outputs), np.int64)
    want = (codes - zeros.repeat(32, 0)) * scales.repeat(32, 0)
    tensors = {"weight": packed(codes, order), "weight_scale": torch.from_numpy(scales)}
    if dtype == "uint4":
        tensors["weight_zero_point"] = packed(zeros, order)
    weight = plain(dtype, "per_group", group_size=32, symmetric=dtype == "int4")
    got = read(reader(said(weight, export={"pack_method": order, "kv_cache_group": []}), tensors), tensors, (outputs, IN))
    np.testing.assert_array_equal(dense(got).numpy(), want.T.astype(np.float32))


def test_which_layers():
    """Excluded by pattern or expression, named by pattern, of a class, or of no kind."""
    int8, fp8 = plain("int8", "per_channel"), plain("fp8_e4m3", "per_tensor")
    fp4 = plain("fp4", "per_group", group_size=32, scale_format="e8m0")
    only = {"bias": None, "output_tensors": None, "input_tensors": None}
    made = registry.of_checkpoint({"quantization_config": said(
        fp8, exclude=["lm_head", "*.layers.1.mlp*", "re:.*layers\\.2\\..*"],
        layer_quant_config={"*k_proj": {"weight": int8, "output_tensors": fp8, "bias": None, "input_tensors": None}},
        layer_type_quant_config={"<class 'torch.nn.modules.linear.Linear'>": {"weight": fp4, **only}},
        export={"pack_method": "order", "kv_cache_group": ["*k_proj"]},
    )})  # fmt: skip
    names = (
        "lm_head",
        "model.layers.1.mlp.up_proj",
        "model.layers.2.self_attn.q_proj",
        "model.layers.0.self_attn.k_proj",
        LAYER,
    )
    assert [str(made.of("linear", f"{n}.weight")) for n in names] == ["dense", "dense", "dense", "int8-row", "float4-g32"]


FINE = plain("fp8_e4m3", "per_tensor")


@pytest.mark.parametrize(
    ("weight", "inputs", "more", "words"),
    [
        ([FINE, plain("int4", "per_channel")], FINE, {}, "fp8_e4m3 under int4.*not documented"),
        (plain("fp8_e5m2", "per_tensor"), None, {}, "'fp8_e5m2' 'per_tensor'"),
        (plain("fp4", "per_group", group_size=64, scale_format="e8m0"), None, {}, "group_size 64"),
        (FINE, plain("int8", "per_tensor", symmetric=False), {}, "input_tensors: .*symmetric"),
        (FINE, plain("fp6_e2m3", "per_group", is_dynamic=True, group_size=32, scale_format="e8m0"), {}, "input_tensors.*fp6"),
        (FINE, None, {"export": {"pack_method": "sideways"}}, "pack_method.*'sideways'"),
        (None, FINE, {}, "weight: inputs are rounded only"),
        (FINE, None, {"layer_quant_config": {"*v_proj": {"weight": FINE, "output_tensors": FINE}}}, "v_proj: output_tensors"),
    ],
)
def test_settings_that_are_not_read_are_refused_by_key(weight, inputs, more, words):
    with pytest.raises(UnsupportedModelError, match=words):
        registry.of_checkpoint({"quantization_config": said(weight, inputs, **more)})


@pytest.mark.parametrize("family", ["llama", "qwen3-moe"])
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.sampled(2)
def test_a_model_in_mxfp4_with_its_own_weights(family, device, tmp_path):
    """Weights alone are rounded: log-probabilities are transformers' with the same dense weights."""
    kept = {}

    def write(layer: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        parts = weight.unflatten(1, (-1, 32))
        powers = torch.floor(torch.log2(parts.abs().amax(-1))) - 2
        ratio = (parts / torch.exp2(powers)[..., None]).flatten(1).numpy()
        codes = np.abs(ratio[..., None] - E2M1).argmin(-1).astype(np.uint8)
        kept[layer] = torch.from_numpy(E2M1[codes]) * torch.exp2(powers).repeat_interleave(32, 1)
        return {"weight": torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4), "weight_scale": (powers + 127).to(torch.uint8)}

    path = source(tmp_path, family)
    made = rewrite(path, tmp_path / "q", said(plain("fp4", "per_group", group_size=32, scale_format="e8m0")), write)
    found = weights(made)
    assert found.keys() == kept.keys()
    assert all(torch.equal(found[layer], kept[layer]) for layer in kept)
    assert counted(made)[0] == counted(made)[1]
    if family == "llama":
        np.testing.assert_allclose(logprobs(made, device), simulated(path, kept), atol=2e-3)
    else:
        assert bool(logprobs(made, device).isfinite().all())
