"""Readers of quantised checkpoints against the library that wrote them: equal weights, equal text where inputs keep their
type, and refusals in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from written import as_dense, rewrite
from zoo import edit_config, load_reference, make_checkpoint

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.safetensors import open_checkpoint
from thalweg.errors import CheckpointError, ConfigError, UnsupportedModelError
from thalweg.hal.comm import Mesh
from thalweg.hal.discovery import load
from thalweg.hal.op import Binder
from thalweg.hal.ops.quantise import dequantise
from thalweg.hal.platform import Place
from thalweg.hal.weights import DENSE
from thalweg.models import registry as families
from thalweg.models import sizes
from thalweg.models.build import build
from thalweg.models.files import Files
from thalweg.models.load import load_params
from thalweg.models.weights import walk
from thalweg.quantization import registry

DEVICE = load("reference").open(Place())
EVERY = {name: {"group_0": (name, ["Linear"])} for name in ("W4A16", "W4A16_ASYM", "W8A16", "W8A8", "FP8_DYNAMIC", "FP8_BLOCK")}
MIXED = {"a": ("W4A16", ["re:.*q_proj", "re:.*mlp.up_proj"]), "b": ("W8A16", ["re:.*k_proj", "re:.*v_proj", "re:.*down_proj"]),
         "c": ("FP8_BLOCK", ["re:.*gate_proj"])}  # fmt: skip
EXPERTS = {"a": ("W4A16", ["re:.*q_proj", "re:.*gate_proj", "re:.*up_proj"]), "b": ("W8A16", ["re:.*k_proj", "re:.*down_proj"])}
"""Gate and up of an expert are one product, down is another."""


@pytest.fixture(autouse=True)
def _uncompiled() -> Iterator[None]:
    """Some of the library's functions are compiled at their first call, which takes longer than all tests here."""
    with torch.compiler.set_stance("force_eager"):
        yield


def model(path: Path, **more):
    read = read_config(path, None, registry.check)
    said = {"binder": Binder(()), "attention": DEVICE.attention, "mesh": Mesh(), "dtype": "float32", "max_len": 64}
    return build(read, **(said | {"block_tokens": 4} | more)), read


@pytest.mark.parametrize("name", [*EVERY, "mixed"])
@pytest.mark.parametrize("family", ["llama-biased", "qwen3-moe"])
@pytest.mark.sampled(3)
def test_the_weights_are_those_that_the_library_reads(name, family, tmp_path):
    source = make_checkpoint(family, tmp_path, tokenizer=False)
    groups = EVERY.get(name) or (EXPERTS if family == "qwen3-moe" else MIXED)
    dense = rewrite(source, tmp_path / "q", groups, ["lm_head", *_routers(source)])
    made, _ = model(tmp_path / "q")
    files = Files(made, open_checkpoint(tmp_path / "q"), DEVICE)
    seen = 0
    for _, spec in walk(made.specs):
        if not spec.sources:
            continue
        want = torch.cat([dense[s.name] for s in spec.sources])
        got = files.read(spec, 0)
        if spec.format != DENSE:
            got, seen = dequantise(got.data, spec.format.group, torch.float32), seen + 1
        assert torch.equal(got, want), spec.sources[0].name
    assert seen > 2


def _routers(source: Path) -> list[str]:
    names = open_checkpoint(source).names
    return [n.removesuffix(".weight") for n in names if n.endswith("mlp.gate.weight")]


@torch.inference_mode()
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("family", "groups"),
    [("qwen3", EVERY["W4A16"]), ("llama-biased", EVERY["W4A16_ASYM"]), ("qwen3", MIXED), ("qwen3-moe", EXPERTS)],
)
@pytest.mark.sampled(1)
def test_text_is_that_of_transformers_with_the_library_s_weights(device, family, groups, tmp_path):
    """Weight-only formats: nothing but the weights is rounded. (Block fp8 rounds inputs too, so MIXED is compared loosely.)"""
    source = make_checkpoint(family, tmp_path)
    dense = rewrite(source, tmp_path / "q", groups, ["lm_head", *_routers(source)])
    oracle = load_reference(as_dense(tmp_path / "dense", source, dense), torch.float32)
    llm = LLM(str(tmp_path / "q"), device=device, dtype="float32", skip_tokenizer_init=True, max_model_len=64, block_size=4)
    rng = np.random.default_rng(2)
    for prompt in (rng.integers(3, 250, n).tolist() for n in (5, 17)):
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=0, detokenize=False)
        (out,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        got = out.outputs[0]
        told = list(got.token_ids)
        rows = oracle(torch.tensor([[*prompt, *told[:-1]]])).logits[0, len(prompt) - 1 :].float().log_softmax(-1)
        mine = [step[t].logprob for step, t in zip(got.logprobs, told, strict=True)]
        if groups is MIXED:
            np.testing.assert_allclose(mine, rows[range(8), told], atol=0.5)
            continue
        assert rows.argmax(-1).tolist() == told
        np.testing.assert_allclose(mine, rows.amax(-1), atol=2e-3 if device == "cpu" else 1e-4)


def test_parts_of_one_product_that_differ_stay_products_of_their_own(tmp_path):
    source = make_checkpoint("llama-biased", tmp_path, tokenizer=False)
    rewrite(source, tmp_path / "q", MIXED, ["lm_head"])
    made, _ = model(tmp_path / "q")
    qkv = made.specs["layers"][0]["mixer"]["qkv"]["weight"]
    assert [(len(s.sources), s.format.bits) for s in qkv.values()] == [(1, 4), (2, 8)]
    assert set(made.specs["layers"][0]["ffn"]["gate_up"]["weight"]) == {0, 1}


def test_codes_of_four_bits_stay_so_in_memory(tmp_path):
    source = make_checkpoint("llama", tmp_path, tokenizer=False)
    rewrite(source, tmp_path / "q", EVERY["W4A16"], ["lm_head"])
    made, read = model(tmp_path / "q")
    params = load_params(made, tmp_path / "q", DEVICE, progress=False)
    held = {t.data_ptr(): t.nbytes for _, t in walk(params)}
    spec, form = families.family(read)(read), registry.scheme(read, None)
    assert sizes.weight_bytes(spec, "float32", 64, use=form) == sum(held.values())
    qkv = params["layers"][0]["mixer"]["qkv"]["weight"]
    assert qkv["pairs"].shape == (96 + 48, 48 // 2) if "pairs" in qkv else False


def test_block_fp8_as_deepseek_publishes_it(tmp_path):
    """The same numbers under the names of the other format: `weight_scale_inv`, blocks in the configuration."""
    from safetensors.torch import load_file, save_file

    source = make_checkpoint("qwen3", tmp_path, tokenizer=False)
    dense = rewrite(source, tmp_path / "q", EVERY["FP8_BLOCK"], ["lm_head"])
    tensors = {
        k.replace("weight_scale", "weight_scale_inv"): v for k, v in load_file(tmp_path / "q" / "model.safetensors").items()
    }
    save_file(tensors, tmp_path / "q" / "model.safetensors", {"format": "pt"})
    said = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 16]}
    edit_config(tmp_path / "q", quantization_config=said)
    made, _ = model(tmp_path / "q")
    files = Files(made, open_checkpoint(tmp_path / "q"), DEVICE)
    for _, spec in walk(made.specs):
        if spec.sources and spec.format != DENSE:
            got = dequantise(files.read(spec, 0).data, spec.format.group, torch.float32)
            assert torch.equal(got, torch.cat([dense[s.name] for s in spec.sources]))
    edit_config(tmp_path / "q", quantization_config=said | {"activation_scheme": "static"})
    with pytest.raises(UnsupportedModelError, match="activation_scheme"):
        read_config(tmp_path / "q", None, registry.check)


def test_files_decide_which_layers_are_quantised_and_rules_may_not_contradict_them(tmp_path):
    """A router or an output matrix is often dense and not listed. One that is listed as dense, and is not, would be noise."""
    source = make_checkpoint("llama", tmp_path, tokenizer=False)
    rewrite(source, tmp_path / "q", EVERY["W4A16"], ["lm_head", "model.layers.0.mlp.up_proj"])
    file = tmp_path / "q" / "config.json"
    config = json.loads(file.read_text())
    said = config["quantization_config"]

    def formats(ignore):
        file.write_text(json.dumps(config | {"quantization_config": said | {"ignore": ignore}}))
        form = registry.scheme(read_config(tmp_path / "q", None, registry.check), None)
        return [form.of("linear", f"model.layers.0.mlp.{name}_proj.weight").bits for name in ("gate", "up")]

    assert formats(said["ignore"]) == formats([]) == [4, 16]
    with pytest.raises(UnsupportedModelError, match=r"leave model.layers.0.mlp.gate_proj dense.*gate_proj.weight_scale"):
        formats(["re:.*mlp.*"])


@pytest.mark.slow
def test_quantised_weights_are_not_rounded_again_and_damaged_ones_are_named(tmp_path):
    source = make_checkpoint("llama", tmp_path, tokenizer=False)
    rewrite(source, tmp_path / "q", EVERY["W4A16"], ["lm_head"])
    with pytest.raises(ConfigError, match=r"quantised already \(compressed-tensors\)"):
        LLM(str(tmp_path / "q"), device="reference", skip_tokenizer_init=True, quantization="int8")
    config = read_config(tmp_path / "q", None, registry.check)
    for name in ("compressed-tensors", None):
        assert registry.scheme(config, name).of("linear", "model.layers.0.mlp.up_proj.weight").bits == 4
    with pytest.raises(
        ConfigError, match=r"'awq' is another format, and .* quantised already \(compressed-tensors\): remove it"
    ):
        registry.scheme(config, "awq")
    from safetensors.torch import load_file, save_file

    tensors = load_file(tmp_path / "q" / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight_scale"]
    tensors["model.layers.1.mlp.up_proj.weight_scale"] = torch.ones(80, 2)
    save_file(tensors, tmp_path / "q" / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        CheckpointError, match=r"lacks model.layers.0.mlp.up_proj.weight_scale; .*layers.1.mlp.up_proj.weight_scale has shape"
    ):
        LLM(str(tmp_path / "q"), device="reference", skip_tokenizer_init=True)
