"""Checkpoints that NVIDIA ModelOpt 0.47 wrote (modelopt/write.py), against what the library made of them."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import counted, logprobs, model, source, weights
from by_hand import rewrite as rewritten
from safetensors.torch import load_file, save_file
from zoo import edit_config

from thalweg.checkpoint.config import read_config
from thalweg.errors import UnsupportedModelError
from thalweg.hal.ops.quantise import round_rows
from thalweg.quantization import registry
from thalweg.quantization.cache import scales

HERE = Path(__file__).parent / "modelopt"
NAMES = sorted(p.name for p in HERE.iterdir() if (p / "oracle.safetensors").exists())
STEP = 37
"""Which values the library's oracle has of a weight: every one of this number."""
Q = "model.layers.0.self_attn.q_proj"


def test_every_algorithm_is_here():
    assert len(NAMES) == 11


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_that_the_library_multiplies_by(name):
    """Blocks of 4-bit floats and mxfp8 are read back by the library's classes, others are those of its simulation."""
    found = weights(HERE / name)
    oracle = load_file(HERE / name / "oracle.safetensors")
    layers = [k.removesuffix(".weight") for k in oracle if k.endswith(".weight")]
    assert sorted(layers) == sorted(found)
    for layer in layers:
        mine, theirs = found[layer].reshape(-1)[::STEP], oracle[f"{layer}.weight"]
        torch.testing.assert_close(mine, theirs, rtol=3e-7, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_counts_what_is_held(name):
    planned, held = counted(HERE / name)
    assert planned == held


@pytest.mark.parametrize("name", ["w4a16_awq", "w4a8_awq", "w8a8_sq"])
@pytest.mark.sampled(2)
def test_inputs_are_smoothed(name, tmp_path):
    """Without pre_quant_scale the same file is farther from the library's simulation."""
    path = tmp_path / name
    shutil.copytree(HERE / name, path)
    tensors = load_file(path / "model.safetensors")
    for key in tensors:
        if key.endswith("pre_quant_scale"):
            tensors[key] = torch.ones_like(tensors[key])
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    oracle = load_file(HERE / name / "oracle.safetensors")
    prompt = tuple(oracle["prompt"][0].tolist())
    want = oracle["logits"].log_softmax(-1)[range(len(prompt) - 1), prompt[1:]]
    without, smoothed = (float((logprobs(p, prompt=prompt) - want).abs().mean()) for p in (path, HERE / name))
    assert without > 1.5 * smoothed, (without, smoothed)


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", [n for n in NAMES if "logits" in load_file(HERE / n / "oracle.safetensors")])
@pytest.mark.sampled(3)
def test_logits_are_those_of_the_library_s_simulation(name, device):
    oracle = load_file(HERE / name / "oracle.safetensors")
    prompt = tuple(oracle["prompt"][0].tolist())
    want = oracle["logits"].log_softmax(-1)[range(len(prompt) - 1), prompt[1:]]
    assert float((logprobs(HERE / name, device, prompt) - want).abs().mean()) < 0.03


@pytest.mark.parametrize(
    ("name", "act", "smoothed"),
    [
        ("fp8", "float8_e4m3fn_static", []), ("fp8_per_channel_per_token", "float8_e4m3fn", []), ("fp8_pb_wo", "", []),
        ("nvfp4", "nvfp4", []), ("w4a16_nvfp4", "", []), ("mxfp8", "mxfp8_up", []), ("mxfp4", "", []),
        ("w4a16_awq", "", ["down", "o"]), ("w4a8_awq", "float8_e4m3fn_static", ["o"]), ("w8a8_sq", "int8_static", "all"),
    ],
)  # fmt: skip
def test_what_inputs_become(name, act, smoothed):
    made, _ = model(HERE / name)
    layers = {n: f"model.layers.0.{p}.{n}_proj" for n, p in [*((x, "mlp") for x in ("gate", "up", "down")),
                                                             *((x, "self_attn") for x in "qkvo")]}  # fmt: skip
    forms = {n: made.formats.of("linear", f"{layer}.weight") for n, layer in layers.items()}
    assert {f.act for f in forms.values()} == {act}
    stored = load_file(HERE / name / "model.safetensors")
    has = {n for n, layer in layers.items() if f"{layer}.pre_quant_scale" in stored}
    assert {n for n, f in forms.items() if f.smoothed} == has
    assert has == set(layers if smoothed == "all" else has)
    assert bool(has) == bool(smoothed)


def test_the_file_beside_the_configuration_is_enough(tmp_path):
    """Older exports have hf_quant_config.json alone. A wildcard leaves attention dense."""
    path = tmp_path / "old"
    shutil.copytree(HERE / "nvfp4_mlp_kv", path)
    config = json.loads((path / "config.json").read_text())
    del config["quantization_config"]
    (path / "config.json").write_text(json.dumps(config))
    found, want = weights(path), weights(HERE / "nvfp4_mlp_kv")
    assert found.keys() == want.keys()
    assert all("mlp" in layer for layer in found)
    assert all(torch.equal(found[layer], want[layer]) for layer in want)


def test_one_algorithm_for_each_layer(tmp_path):
    """MIXED_PRECISION: tensors of two checkpoints in one. Layers that it does not list are dense."""
    path = tmp_path / "mixed"
    shutil.copytree(HERE / "fp8", path)
    fp8, nvfp4 = (load_file(HERE / n / "model.safetensors") for n in ("fp8", "nvfp4"))
    both = {k: t for k, t in fp8.items() if ".mlp." not in k} | {k: t for k, t in nvfp4.items() if ".mlp." in k}
    dense = {k for k in both if ".o_proj." in k and not k.endswith(".weight")}
    both = {k: t for k, t in both.items() if k not in dense}
    both["model.layers.0.self_attn.o_proj.weight"] = both["model.layers.0.self_attn.o_proj.weight"].float()
    save_file(both, path / "model.safetensors", {"format": "pt"})
    layers = {k.removesuffix(".weight_scale"): {"quant_algo": "NVFP4" if "mlp" in k else "FP8", "group_size": 16}
              for k in both if k.endswith(".weight_scale")}  # fmt: skip
    (path / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}})
    )
    config = json.loads((path / "config.json").read_text())
    del config["quantization_config"]
    (path / "config.json").write_text(json.dumps(config))
    found = weights(path)
    one, other = weights(HERE / "fp8"), weights(HERE / "nvfp4")
    want = {layer: (other if "mlp" in layer else one)[layer] for layer in one if "o_proj" not in layer}
    assert found.keys() == want.keys()
    assert all(torch.equal(found[layer], want[layer]) for layer in want)
    assert counted(path)[0] == counted(path)[1]


def test_scales_of_a_cache_that_is_no_float8_are_left_out_and_the_log_says_so(caplog):
    with caplog.at_level(logging.WARNING, "thalweg.models.files"):
        weights(HERE / "nvfp4_mlp_kv")
    said = " ".join(r.getMessage() for r in caplog.records)
    assert "self_attn.k_proj.k_scale, model.layers.0.self_attn.v_proj.v_scale of the checkpoint are not used" in said
    assert "where those are cached in float8 (--kv-cache-dtype fp8)" in said


def test_scales_of_a_float8_cache_are_those_of_the_file():
    config = read_config(HERE / "nvfp4_mlp_kv", None, registry.check)
    form, stored = registry.of_checkpoint(config), load_file(HERE / "nvfp4_mlp_kv" / "model.safetensors")
    assert form.cache() == "fp8_e4m3"
    at = "model.layers.0.self_attn"
    found = scales(form, at)
    assert (found.key, found.value) == tuple(float(stored[f"{at}.{p}_proj.{p}_scale"]) for p in "kv")
    assert found.key > 0 < found.value


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("self_attn.k_scale", True), ("self_attn.kv_scale", True), ("self_attn.k_proj.k_scale", True), ("attn.q_scale", True),
        ("self_attn.v_proj.output_scale", True), ("self_attn.qkv_proj.output_scale", True), ("mixer.v_scale", True),
        ("self_attn.k_cache.scale", True), ("self_attn.prob_output_scale", True), ("self_attn.v_zero_point", True),
        ("self_attn.k_proj.weight_scale", False), ("self_attn.o_proj.output_scale", False), ("mlp.up_proj.input_scale", False),
        ("self_attn.k_proj.scale", False), ("self_attn.k_proj.bias", False),
    ],
)  # fmt: skip
def test_names_of_scales_of_a_cache(name, is_one):
    made = registry.of_checkpoint({"quantization_config": {"quant_method": "fp8"}})
    assert made.ignores(f"model.layers.0.{name}") == is_one


def test_algorithms_that_are_not_read_are_refused(tmp_path):
    for algo in ("NVFP4_SVD", "MIXED_PRECISION"):
        with pytest.raises(UnsupportedModelError, match=f"quant_algo: '{algo}'.*reads FP8"):
            registry.of_checkpoint({"quantization_config": {"quant_method": "modelopt", "quant_algo": algo}})
    path = source(tmp_path)
    edit_config(path, quantization_config={"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"})
    made = registry.scheme(read_config(path, None, registry.check), None)
    assert made.of("linear", f"{Q}.weight").kind == "dense"


def test_experts_in_nvfp4(tmp_path):
    """Tensors of each expert, by the definition: codes * weight_scale * weight_scale_2."""
    from test_fp8 import E2M1

    kept: dict[str, torch.Tensor] = {}

    def write(layer, weight):
        if ".experts." not in layer:
            return None
        outer = weight.abs().max() / (6 * 448)
        parts = weight.unflatten(1, (-1, 16))
        scales = (parts.abs().amax(-1) / 6 / outer).to(torch.float8_e4m3fn)
        ratio = (parts / (scales.float() * outer)[..., None]).flatten(1).numpy()
        codes = np.abs(ratio[..., None] - E2M1).argmin(-1).astype(np.uint8)
        kept[layer] = torch.from_numpy(E2M1[codes]) * (scales.float() * outer).repeat_interleave(16, 1)
        packed = torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4)
        return {"weight": packed, "weight_scale": scales, "weight_scale_2": outer, "input_scale": torch.tensor(0.01)}

    path = source(tmp_path, "qwen3-moe")
    said = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*self_attn*", "*.mlp.gate"]}
    made = rewritten(path, tmp_path / "q", said, write)
    found = weights(made)
    assert found.keys() == kept.keys()
    assert len(kept) == 2 * 4 * 3
    assert all(torch.equal(found[layer], kept[layer]) for layer in kept)
    assert counted(made)[0] == counted(made)[1]


def test_a_simulated_layer_rounds_its_inputs_up_to_powers_of_two():
    """The library's rule for MX: nothing is clamped. Scale = 2**ceil(log2(largest / 448))."""
    x = torch.randn(7, 96, generator=torch.Generator().manual_seed(2)) * torch.logspace(-5, 5, 7)[:, None]
    x[3, :32] = 448 * 2.0**-3  # exact: it is not rounded up
    parts = x.unflatten(1, (-1, 32))
    scale = torch.exp2(torch.ceil(torch.log2(parts.abs().amax(-1, keepdim=True) / 448)))
    want = ((parts / scale).to(torch.float8_e4m3fn).float() * scale).flatten(1)
    assert torch.equal(round_rows(x, "mxfp8_up"), want)
