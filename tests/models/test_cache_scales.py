"""Scales of keys and values in checkpoints, where caches are float8: against transformers whose attention rounds keys and
values by the formula, in float32. Weights make keys tiny and values large, so without the scales nothing would be right."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.llama.modeling_llama import eager_attention_forward
from zoo import edit_config, load_reference, make_checkpoint

from thalweg import LLM, SamplingParams
from thalweg.backends.reference.attention import ReferenceAttention
from thalweg.checkpoint.weights import TensorHeaders
from thalweg.config import EngineArgs
from thalweg.engine.planning.memory import plan
from thalweg.errors import CheckpointError, ConfigError, UnsupportedModelError
from thalweg.hal import ops
from thalweg.quantization.cache import CacheScales, scales
from thalweg.quantization.formats.compressed_tensors import CompressedTensors

SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
DENSE = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": SCHEME}
KEY, VALUE = (0.0003, 0.0005), (40.0, 9.0)
"""Of each layer."""


def made(name: str, folder: Path, names: tuple[str, str] = ("k_scale", "v_scale"), config: Any = None) -> Path:
    """A model of transformers whose keys are a thousandth of what they were, and its queries a thousand times as much."""
    path = make_checkpoint(name, folder)
    weights = load_file(path / "model.safetensors")
    normed = any("k_norm" in n for n in weights)
    for n in weights:
        if n.endswith(("q_norm.weight", "k_norm.weight") if normed else ("q_proj.weight", "k_proj.weight")):
            weights[n] = weights[n] * (1000.0 if ".q_" in n else 0.001)
        elif n.endswith("v_proj.weight"):
            weights[n] = weights[n] * 1000.0
        elif n.endswith("o_proj.weight"):
            weights[n] = weights[n] * 0.001
    for i in range(2):
        for scale, at in zip((KEY[i], VALUE[i]), names, strict=True):
            weights[f"model.layers.{i}.self_attn.{at}"] = torch.tensor(scale).reshape(1)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    edit_config(path, quantization_config=DENSE if config is None else config)
    return path


def wanted(path: Path, prompt: list[int], rounds: bool) -> np.ndarray:
    """Log-probabilities of the prompt's tokens in transformers, keys and values rounded by the formula or not."""

    def attention(module: Any, q: Any, k: Any, v: Any, mask: Any, **more: Any) -> Any:
        if rounds:
            k, v = (_rounded(t, s[module.layer_idx]) for t, s in ((k, KEY), (v, VALUE)))
        return eager_attention_forward(module, q, k, v, mask, **more)

    transformers.AttentionInterface.register("float8_cache", attention)
    transformers.AttentionMaskInterface.register("float8_cache", transformers.masking_utils.eager_mask)
    edit_config(path, quantization_config=None)
    model = load_reference(path, torch.float32)
    model.set_attn_implementation("float8_cache")
    with torch.inference_mode():
        rows = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    return rows[torch.arange(len(prompt) - 1), torch.tensor(prompt[1:])].numpy()


def _rounded(x: torch.Tensor, scale: float) -> torch.Tensor:
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


PROMPT = np.random.default_rng(4).integers(3, 250, 30).tolist()


def told(path: Path, device: str = "reference", **more: Any) -> np.ndarray:
    llm = LLM(str(path), device=device, dtype="float32", max_model_len=64, block_size=4, max_num_batched_tokens=16, **more)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    (out,) = llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)
    return np.array([step[t].logprob for step, t in zip(out.prompt_logprobs[1:], PROMPT[1:], strict=True)])


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.sampled(2)
def test_a_float8_cache_is_scaled_as_the_checkpoint_says(name, device, tmp_path):
    """Qwen3 norms q and k after their projections: its scales come after that."""
    path = made(name, tmp_path)
    mine = told(path, device, kv_cache_dtype="fp8")
    want, exact = (wanted(path, PROMPT, rounds=r) for r in (True, False))
    np.testing.assert_allclose(mine, want, atol=2e-3)  # a value that lies between two codes may fall to either side
    assert np.abs(want - exact).max() > 0.01


@pytest.mark.parametrize(("name", "fused"), [("llama", True), ("qwen3", False)])
def test_backends_that_norm_and_rotate_get_what_they_cache(name, fused, tmp_path, monkeypatch):
    """Before norms no scale would be left, so a model that has them does without such a backend."""
    calls = []

    def attend_fused(self, q, k, v, kv, batch, group, spec, prologue, cos_sin, weights=None, sinks=None):
        calls.append(prologue)
        turned = {"rotary_dim": prologue.rotary_dim, "interleaved": prologue.interleaved}
        q, k = ops.rope.reference(q, k, batch.positions, cos_sin, **turned)
        return self.attend(q, k, v, kv, batch, group, spec)

    monkeypatch.setattr(ReferenceAttention, "fuses", lambda self, spec, prologue: None)
    monkeypatch.setattr(ReferenceAttention, "attend_fused", attend_fused)
    path = made(name, tmp_path)
    mine = told(path, kv_cache_dtype="fp8")
    np.testing.assert_allclose(mine, wanted(path, PROMPT, rounds=True), atol=2e-3)
    assert bool(calls) == fused


def test_without_its_scales_such_a_cache_is_far_off(tmp_path):
    """What the test above would miss: caches that are not rounded at all, or scales that do not matter."""
    path = made("llama", tmp_path)
    weights = {n: w for n, w in load_file(path / "model.safetensors").items() if not n.endswith("_scale")}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    off = np.abs(told(path, kv_cache_dtype="fp8") - wanted(path, PROMPT, rounds=False))
    assert off.max() > 0.5


@pytest.mark.parametrize(
    "names",
    [("attn.k_scale", "attn.v_scale"), ("k_proj.k_scale", "v_proj.v_scale"), ("qkv_proj.k_scale", "qkv_proj.v_scale"),
     ("k_proj.output_scale", "v_proj.output_scale"), ("k_cache.scale", "v_cache.scale")],
    ids=lambda n: n[0],
)  # fmt: skip
def test_scales_are_found_by_every_name(names, tmp_path, caplog):
    path = made("llama", tmp_path, names)
    mine = told(path, kv_cache_dtype="fp8")
    assert "not used" not in caplog.text
    np.testing.assert_allclose(mine, wanted(path, PROMPT, rounds=True), atol=2e-3)


def test_one_old_scale_serves_both_and_those_never_measured_count_as_one(tmp_path):
    held = {
        "a.kv_scale": torch.tensor([0.5]), "b.k_scale": torch.tensor(-1.0),
        "b.v_scale": torch.tensor(0.25, dtype=torch.bfloat16), "c.q_scale": torch.tensor(2.0), "d.k_scale": torch.ones(4),
        "e.v_scale": torch.tensor(float("nan")),
    }  # fmt: skip
    save_file(held, tmp_path / "model.safetensors")
    form = CompressedTensors({**DENSE, "stored": TensorHeaders(tmp_path)})
    assert scales(form, "a") == CacheScales(0.5, 0.5, ("a.kv_scale",))
    assert scales(form, "b") == CacheScales(1.0, 0.25, ("b.k_scale", "b.v_scale"))
    assert scales(form, "c") is None
    with pytest.raises(UnsupportedModelError, match=r"d\.k_scale: has 4 scales"):
        scales(form, "d")
    with pytest.raises(CheckpointError, match=r"e\.v_scale: nan is not a finite scale"):
        scales(form, "e")


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (DENSE, "float8_e4m3fn"),
        ({**DENSE, "kv_cache_scheme": {**SCHEME, "type": "int"}}, ""),
        ({**DENSE, "kv_cache_scheme": {**SCHEME, "strategy": "attn_head"}}, ""),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}, "float8_e4m3fn"),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": None, "kv_cache_quant_algo": "NVFP4"}}, ""),
    ],
)  # fmt: skip
@pytest.mark.sampled(2)
def test_auto_is_what_the_checkpoint_says(config, kept, tmp_path, caplog):
    """As vLLM has it. The model's own type, asked for by name, is left alone."""
    path = made("llama", tmp_path, config=config)
    caplog.set_level(logging.INFO)
    llm = LLM(str(path), device="reference", dtype="float32", max_model_len=64)
    assert llm.config.cache.dtype == kept
    assert ("keys and values are cached in fp8_e4m3, as the checkpoint says" in caplog.text) == bool(kept)
    assert ("k_scale" in caplog.text and "are not used" in caplog.text) == (not kept)
    said = {"model": str(path), "device": "reference", "dtype": "float32"}
    auto, whole = (plan(EngineArgs(**said, kv_cache_dtype=k)).kv_per_token for k in ("auto", "float32"))
    assert auto * (4 if kept else 1) == whole
    assert LLM(**said, max_model_len=64, kv_cache_dtype="float32").config.cache.dtype == "float32"


def test_layers_that_are_skipped_keep_the_models_type(tmp_path):
    path = made("llama", tmp_path)
    both, none = told(path, kv_cache_dtype="fp8"), told(path, kv_cache_dtype="float32")
    first = told(path, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=["0"])
    assert np.abs(first - none).max() > 0
    assert np.abs(first - both).max() > 0
    np.testing.assert_array_equal(told(path, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=["0", "1"]), none)

    def per_token(path: Path, skip: list[str]) -> int:
        args = {"device": "reference", "dtype": "float32", "kv_cache_dtype": "fp8", "kv_cache_dtype_skip_layers": skip}
        return plan(EngineArgs(model=str(path), max_model_len=64, **args)).kv_per_token

    assert per_token(path, ["1"]) * 2 == per_token(path, ["0", "1"]) + per_token(path, [])
    windowed = make_checkpoint("qwen3-windowed", tmp_path)  # two of three layers
    assert per_token(windowed, ["sliding_window"]) == per_token(windowed, ["0", "2"]) > per_token(windowed, ["1"])
    for skip, why in ((["2"], "the model's layers are 0 to 1"), (["full"], "neither a layer's number nor sliding_window")):
        with pytest.raises(ConfigError, match=why):
            LLM(str(path), device="reference", kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=skip)
