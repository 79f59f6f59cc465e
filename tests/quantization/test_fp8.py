"""8-bit floats by tensor, output and block, from their definition in numpy: equal weights, the inputs' rounding, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from by_hand import LAYER, counted, dense, drawn, logprobs, read, reader, rewrite, simulated, source, weights
from zoo import edit_config

from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal.ops.quantise import round_rows
from thalweg.quantization import registry

FP8 = torch.float8_e4m3fn
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0], np.float32)


def blocks(
    weight: torch.Tensor, rows: int, columns: int, power: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales [⌈out / rows⌉, ⌈in / columns⌉], and the weight they stand for."""
    out, fan_in = weight.shape
    scales = torch.empty(-(-out // rows), -(-fan_in // columns))
    codes, back = torch.empty(weight.shape, dtype=FP8), torch.empty(weight.shape)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            part = np.s_[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            scale = weight[part].abs().max() / 448
            scales[i, j] = torch.exp2(torch.ceil(torch.log2(scale))) if power else scale
            codes[part] = (weight[part] / scales[i, j]).to(FP8)
            back[part] = codes[part].float() * scales[i, j]
    return codes, scales, back


@pytest.mark.parametrize("shape", [(576, 256), (192, 256), (128, 200)])
@pytest.mark.parametrize("kept", ["float32", "bfloat16", "uint8", "float8_e8m0fnu"])
@pytest.mark.parametrize("name", ["weight_scale_inv", "weight_scale", "scale"])
def test_blocks_have_the_size_that_the_configuration_says(shape, kept, name):
    """576 rows are 4.5 blocks of 128, and 192 rows are not two of 96. Exponents are stored in three ways."""
    codes, scales, want = blocks(drawn(*shape), 128, 128, power=True)
    exponents = (torch.log2(scales) + 127).to(torch.uint8)
    stored = {"uint8": exponents, "float8_e8m0fnu": exponents.view(torch.float8_e8m0fnu)}
    tensors = {"weight": codes, name: stored[kept] if kept in stored else scales.to(getattr(torch, kept))}
    said = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0", "activation_scheme": "dynamic"}
    got = read(reader(said, tensors), tensors, shape)
    assert torch.equal(dense(got), want)
    assert got.format.act == "float8_e4m3fn_per_group"


def test_an_exponent_that_is_no_number_is_refused():
    codes, _, _ = blocks(drawn(128, 128), 128, 128)
    tensors = {"weight": codes, "weight_scale_inv": torch.full((1, 1), 255, dtype=torch.uint8)}
    made = reader({"quant_method": "fp8", "weight_block_size": [128, 128]}, tensors)
    with pytest.raises(CheckpointError, match="is NaN"):
        read(made, tensors, (128, 128))
    tensors["weight_scale_inv"] = torch.zeros(1, 1, dtype=torch.uint8)
    assert torch.equal(dense(read(made, tensors, (128, 128))), codes.float() * 2.0**-127)


@pytest.mark.parametrize("scale_shape", [(), (1,), (40, 1), (40,)])
@pytest.mark.parametrize("scheme", ["static", "dynamic"])
def test_scales_of_the_tensor_and_of_outputs(scale_shape, scheme):
    weight = drawn(40, 64)
    rows = len(scale_shape) and scale_shape[0] == 40
    scale = weight.abs().amax(1, keepdim=True) / 448 if rows else weight.abs().amax() / 448
    codes = (weight / scale).to(FP8)
    tensors = {"weight": codes, "weight_scale": scale.reshape(scale_shape)}
    if scheme == "static":
        tensors["input_scale"] = torch.tensor(0.02)
    got = read(reader({"quant_method": "fp8", "activation_scheme": scheme}, tensors), tensors, (40, 64))
    assert torch.equal(dense(got), codes.float() * scale)
    x = drawn(5, 64, 2) * 3
    mine = round_rows(x, got.format.act, 0, got.data.get("input_scale"))
    by = torch.tensor(0.02) if scheme == "static" else x.abs().amax(1, keepdim=True) / 448
    assert torch.equal(mine, (x / by).clamp(-448, 448).to(FP8).float() * by)


def test_fbgemm_clips_what_rows_are_scaled_by():
    weight = drawn(40, 64)
    scale = weight.abs().amax(1, keepdim=True) / 448
    tensors = {"weight": (weight / scale).to(FP8), "weight_scale": scale}
    got = read(reader({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1.5}, tensors), tensors, (40, 64))
    assert torch.equal(dense(got), tensors["weight"].float() * scale)
    x = drawn(6, 64, 4) * 2
    by = x.abs().amax(1, keepdim=True).clamp(max=1.5) / 448
    assert torch.equal(round_rows(x, got.format.act), (x / by).clamp(-448, 448).to(FP8).float() * by)
    with pytest.raises(UnsupportedModelError, match="activation_scale_ub"):
        reader({"quant_method": "fbgemm_fp8"}, tensors)


@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_mxfp8_has_a_power_of_two_for_each_32_inputs(name):
    codes, scales, want = blocks(drawn(40, 96), 1, 32, power=True)
    tensors = {"weight": codes, name: (torch.log2(scales) + 127).to(torch.uint8)}
    got = read(reader({"quant_method": "mxfp8"}, tensors), tensors, (40, 96))
    assert torch.equal(dense(got), want)
    assert got.format.act == "mxfp8"


def test_experts_of_deepseek_v4_are_4_bit_floats_beside_blocks():
    """The tensors of an expert: bytes of two codes, the first in the lower half, and exponents of 32 inputs."""
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 16, (48, 64)).astype(np.uint8)
    exponents = rng.integers(118, 130, (48, 2)).astype(np.uint8)
    want = E2M1[bits] * np.repeat(np.exp2(exponents.astype(np.float32) - 127), 32, 1)
    packed = torch.from_numpy(bits[:, ::2] | bits[:, 1::2] << 4)
    said = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}
    for weight in (packed, packed.view(torch.int8)):
        tensors = {"weight": weight, "scale": torch.from_numpy(exponents).view(torch.float8_e8m0fnu)}
        made = reader(said, tensors)
        got = made.read(LAYER, (48, 64), tensors.__getitem__)
        np.testing.assert_array_equal(dense(got).numpy(), want)
        assert made.of("experts", f"{LAYER}.weight") == got.format
        parts = made.parts(LAYER, (48, 64))
        assert {k: p.shapes for k, p in parts.items()} == {"weight": ((48, 32),), "scale": ((48, 2),)}


def test_layers_that_are_left_out():
    weight = {"weight": torch.zeros(8, 8)}
    for key in ("ignored_layers", "modules_to_not_convert"):
        made = registry.of_checkpoint({"quantization_config": {"quant_method": "fp8", key: ["lm_head", "model.layers.1"]}})
        found = [
            made.of("linear", f"{n}.weight").kind
            for n in ("lm_head", "model.layers.1.mlp.up_proj", "model.layers.0.mlp.up_proj")
        ]
        assert found == ["dense", "dense", "float"]
    assert (
        reader({"quant_method": "fp8"}, weight).of("linear", f"{LAYER}.weight").kind == "dense"
    )  # not listed, and has no scale
    said = {"quant_method": "fp8", "modules_to_not_convert": [LAYER]}
    tensors = {"weight": torch.zeros(8, 8).to(FP8), "weight_scale": torch.ones(1)}
    with pytest.raises(UnsupportedModelError, match=r"leave model.layers.0.mlp.down_proj dense.*weight_scale"):
        reader(said, tensors).of("linear", f"{LAYER}.weight")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight_block_size": [128]}, "weight_block_size"),
        ({"activation_scheme": "static", "weight_block_size": [128, 128]}, "activation_scheme.*with blocks"),
        ({"activation_scheme": "unheard-of"}, "activation_scheme"),
        ({"fmt": "e5m2"}, "fmt.*e5m2"),
    ],
)
def test_settings_that_are_not_read_are_refused_by_key(change, words):
    with pytest.raises(UnsupportedModelError, match=words):
        registry.of_checkpoint({"quantization_config": {"quant_method": "fp8"} | change})


def _static(layer: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    scale = weight.abs().amax() / 448
    return {"weight": (weight / scale).to(FP8), "weight_scale": scale, "input_scale": torch.tensor([0.03 + len(layer) / 1e4])}


@pytest.mark.parametrize("family", ["llama", "qwen3-moe"])
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.sampled(2)
def test_a_model_with_static_scales_answers_as_transformers_does_with_inputs_rounded_so(family, device, tmp_path):
    """Each of q, k and v has scales of its own. Inputs of experts are not rounded: their op rounds none."""
    path = source(tmp_path, family)
    made = rewrite(path, tmp_path / "q", {"quant_method": "fp8", "activation_scheme": "static"}, _static)
    planned, held = counted(made)
    assert planned == held
    back, kept = {}, {}
    rewrite(path, tmp_path / "again", {}, lambda layer, w: kept.setdefault(layer, _static(layer, w)))
    for layer, t in kept.items():
        back[layer] = t["weight"].float() * t["weight_scale"]
    found = weights(made)
    assert found.keys() == back.keys()
    assert all(torch.equal(found[layer], back[layer]) for layer in back)
    if family == "llama":
        by = {layer: t["input_scale"] for layer, t in kept.items()}
        want = simulated(path, back, lambda layer, x: (x / by[layer]).clamp(-448, 448).to(FP8).float() * by[layer])
        np.testing.assert_allclose(logprobs(made, device), want, atol=2e-2)
    else:
        assert bool(logprobs(made, device).isfinite().all())


def test_a_weight_of_another_type_than_the_format_s_is_named(tmp_path):
    from thalweg import LLM

    def wrong(layer, weight):
        made = _static(layer, weight)
        return made | {"weight": made["weight"].view(torch.int8)} if layer.endswith("0.mlp.up_proj") else made

    made = rewrite(source(tmp_path), tmp_path / "q", {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, wrong)
    with pytest.raises(CheckpointError, match=r"mlp.up_proj.weight has dtype int8; this version reads float8_e4m3fn"):
        LLM(str(made), device="reference", skip_tokenizer_init=True)


def test_dummy_weights_of_a_static_format_run(tmp_path):
    """Without files nothing says which inputs come where, or by what they are scaled."""
    from thalweg import LLM, SamplingParams

    path = source(tmp_path)
    edit_config(path, quantization_config={"quant_method": "fp8", "activation_scheme": "static"})
    (path / "model.safetensors").unlink()
    assert read_config(path, None, registry.check)["quantization_config"].get("stored") is None
    llm = LLM(str(path), device="reference", load_format="dummy", skip_tokenizer_init=True, max_model_len=32)
    (out,) = llm.generate([{"prompt_token_ids": [3, 4]}], SamplingParams(max_tokens=2, detokenize=False), use_tqdm=False)
    assert len(out.outputs[0].token_ids) == 2
