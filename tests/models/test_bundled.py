"""The bundled model: the committed script makes the committed files, and other software can read them."""

from __future__ import annotations

import filecmp
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from rig import Rig
from zoo import load_reference

from thalweg.checkpoint.config import eos_ids, facts, read_config
from thalweg.checkpoint.hub import resolve_model

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def script(name: str, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_makes_the_committed_files_byte_for_byte(tmp_path, monkeypatch):
    script("make_bundled_model", monkeypatch).make(tmp_path)
    bundled = resolve_model("bundled")
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == sorted(p.name for p in bundled.iterdir())
    assert filecmp.cmpfiles(tmp_path, bundled, names, shallow=False) == (names, [], [])


def test_it_is_small_and_says_that_it_is_random():
    bundled = resolve_model("bundled")
    assert sum(p.stat().st_size for p in bundled.iterdir()) < 1_000_000
    assert "random weights" in (bundled / "README.md").read_text()


def test_transformers_reads_its_tokenizer_and_template():
    tok = transformers.AutoTokenizer.from_pretrained(resolve_model("bundled"))
    text = 'Grüße, 世界! def f(x): return x\n\t"quoted"'
    assert tok.decode(tok.encode(text, add_special_tokens=False)) == text
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert tok.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    config = read_config(resolve_model("bundled"))
    assert set(eos_ids(resolve_model("bundled"), config)) == set(tok.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))
    assert len(tok) == config["vocab_size"]


def test_it_generates_what_transformers_generates():
    path = resolve_model("bundled")
    prompt = [1, 301, 12, 999, 500, 42]
    (s,) = Rig(path).generate([prompt], 20, 99, 99)
    oracle = load_reference(path, torch.float32)
    with torch.inference_mode():
        want = oracle.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=-1)[0].tolist()
    assert s.tokens == want
    assert len(set(want)) > 10, "a model that repeats itself tests little"


@pytest.mark.parametrize("shape", ["qwen3-0.6b", "llama-3.2-1b"])
def test_shape_models_have_the_parameters_transformers_expects(shape, tmp_path, monkeypatch):
    script("make_shape_model", monkeypatch).make(shape, tmp_path, vocab=1100, layers=1, tokenizer=True)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert len(transformers.AutoTokenizer.from_pretrained(tmp_path)) == 1100
    weight = model.model.layers[0].mlp.down_proj.weight.float()
    np.testing.assert_allclose(weight.std().item(), weight.shape[1] ** -0.5, rtol=0.02)
    got = facts(read_config(tmp_path), tmp_path)
    assert (got.dtype, got.vocab, got.weight_bytes) == ("bfloat16", 1100, 2 * sum(p.numel() for p in model.parameters()))


def test_the_published_shape_has_the_published_size(monkeypatch):
    """Qwen3-0.6B: 596,049,920 parameters, from its model card's safetensors metadata."""
    make = script("make_shape_model", monkeypatch)
    tensors = sys.modules["weights"].shapes(make.SHAPES["qwen3-0.6b"], qk_norm=True)
    assert sum(int(np.prod(s)) for s in tensors.values()) == 596_049_920
