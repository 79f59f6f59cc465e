"""Checkpoints of published shapes with random weights: what the script makes is what other software expects."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import transformers

from thalweg.checkpoint.config import facts, read_config

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def script(name: str, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("shape", ["qwen3-0.6b", pytest.param("llama-3.2-1b", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_shape_models_have_the_parameters_transformers_expects(shape, tmp_path, monkeypatch):
    script("make_shape_model", monkeypatch).make(shape, tmp_path, vocab=2600, layers=1, tokenizer=True)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert len(transformers.AutoTokenizer.from_pretrained(tmp_path)) == 2600
    weight = model.model.layers[0].mlp.down_proj.weight.float()
    np.testing.assert_allclose(weight.std().item(), weight.shape[1] ** -0.5, rtol=0.02)
    got = facts(read_config(tmp_path), tmp_path)
    assert (got.dtype, got.vocab, got.weight_bytes) == ("bfloat16", 2600, 2 * sum(p.numel() for p in model.parameters()))


@pytest.mark.parametrize(("shape", "parameters"), [("qwen3-0.6b", 596_049_920), ("qwen3-30b-a3b", 30_532_122_624)])
def test_the_published_shape_has_the_published_size(shape, parameters, monkeypatch):
    """From the model cards' safetensors metadata."""
    make = script("make_shape_model", monkeypatch)
    tensors = sys.modules["weights"].shapes(make.SHAPES[shape], qk_norm=True)
    assert sum(int(np.prod(s)) for s in tensors.values()) == parameters


def test_a_small_mixture_has_the_tensors_transformers_expects(tmp_path, monkeypatch):
    make = script("make_shape_model", monkeypatch)
    small = {"hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
    monkeypatch.setitem(make.SHAPES, "small", make.SHAPES["qwen3-30b-a3b"] | small)
    make.make("small", tmp_path, vocab=300, layers=1)
    _, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
