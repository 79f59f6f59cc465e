"""GGUF files of many families, written as llama.cpp's converter writes them, against the models that they were made of."""

from __future__ import annotations

import math
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from families import FAMILIES, convert_family, make
from test_models import built, parameters, told

from thalweg import LLM, SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.gguf.architectures import TABLE
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.translate import _translate as translated
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.quantization import registry

FOLDED = ("falcon-h1",)
"""Families whose weights the converter multiplied: their text is compared, and no parameter."""
QUICK = ("gpt-oss", "gemma2", "gemma4-moe", "phi3", "granite-hybrid", "mamba", "cohere", "gpt2", "gpt-neox")
TOLD = (
    "gpt-oss", "qwen3-next", "qwen3.5", "gemma2", "gemma3n", "gemma4-moe", "phi4-mini", "llama4", "granite-hybrid",
    "nemotron-h", "mamba", "falcon-mamba", "mamba2", "jamba", "falcon-h1", "lfm2-moe", "olmo3", "cohere2", "smollm3",
    "ernie4.5-moe", "exaone4", "minimax-m2", "ministral3", "starcoder2", "phi", "gpt2", "gpt-neox", "falcon",
)  # fmt: skip


def few(names: tuple[str, ...], quick: tuple[str, ...]) -> list:
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", few(tuple(n for n in FAMILIES if n not in FOLDED), QUICK))
@pytest.mark.sampled(2)
def test_files_have_the_parameters_of_their_model(name, tmp_path):
    """Equal, but for what was raised by 1, or written as an exponential: that is so to the last digits."""
    source = make(name, tmp_path)
    mine, theirs = parameters(convert_family(name, source, tmp_path / "m.gguf")), parameters(source)
    assert mine.keys() == theirs.keys()
    for key, want in theirs.items():
        found = mine[key]
        if name == "qwen3-next" and key.endswith("mixer.in.weight"):  # the same rows, grouped otherwise
            found, want = (w[torch.argsort(w[:, 0])] for w in (found, want))
        if "norm" in key or key.endswith("rate.log"):
            torch.testing.assert_close(found, want, rtol=2e-6, atol=1e-6)
        else:
            assert torch.equal(found, want), key


@pytest.mark.parametrize("name", few(TOLD, ("gpt-oss", "mamba")))
@pytest.mark.slow
def test_text_of_files_is_that_of_their_model(name, tmp_path):
    """Configuration: what keys say, and what they leave out."""
    source = make(name, tmp_path)
    assert told(convert_family(name, source, tmp_path / "m.gguf")) == told(source)


SCORED = (
    "arcee", "nemotron", "olmo", "olmo-clipped", "stablelm", "stablelm-12b", "apertus", "dots1", "internlm2", "exaone",
    "minicpm", "bailingmoe2",
    "afmoe", "exaone-moe", "hunyuan-moe", "bloom", "mpt", "mpt-clipped", "minicpm3", "xverse", "deepseek",
)  # fmt: skip


def scores(path: Path) -> list[list[dict[int, float]]]:
    """Per answer and token: log-probabilities of the most likely tokens."""
    llm = LLM(str(path), device="reference", dtype="float32", max_model_len=64, block_size=4)
    prompts = [{"prompt_token_ids": np.random.default_rng(n).integers(3, 250, n).tolist()} for n in (5, 17)]
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=8, ignore_eos=True, detokenize=False)
    answers = [o.outputs[0] for o in llm.generate(prompts, params, use_tqdm=False)]
    return [[{token: each.logprob for token, each in place.items()} for place in a.logprobs] for a in answers]


@pytest.mark.parametrize("name", SCORED)
@pytest.mark.slow
def test_log_probabilities_of_files_are_those_of_their_model(name, tmp_path):
    source = make(name, tmp_path)
    mine, theirs = scores(convert_family(name, source, tmp_path / "m.gguf")), scores(source)
    for found, want in zip(mine, theirs, strict=True):
        for one, other in zip(found, want, strict=True):
            assert one == pytest.approx(other, abs=2e-5)


def held(path: Path) -> dict[str, str]:
    return read_config(path, None, registry.check).get("quantization_config", {}).get("types", {})


def whole(path: Path) -> dict[str, torch.Tensor]:
    """Parameters whose parts are held in several formats, joined."""
    out: dict[str, list[torch.Tensor]] = {}
    for key, w in parameters(path).items():
        out.setdefault(re.sub(r"weight\.\d+$", "weight", key), []).append(w)
    return {key: torch.cat(parts) for key, parts in out.items()}


def of(**kinds: str):
    """The type of a matrix by a part of its name; F32 of others."""
    return lambda name: next((kind for part, kind in kinds.items() if part in name), "F32")


def same(name: str, source: Path, directory: Path, kind) -> Path:
    """Blocks give what the package decodes. Returns the file with blocks."""
    file = convert_family(name, source, directory / "blocks.gguf", kind)
    mine, theirs = whole(file), whole(convert_family(name, source, directory / "dense.gguf", kind, decoded=True))
    assert mine.keys() == theirs.keys()
    for key, want in theirs.items():
        assert torch.equal(mine[key], want), key
    return file


def test_experts_of_gpt_oss_stay_in_mxfp4(tmp_path):
    source = make("gpt-oss", tmp_path, hidden_size=64, intermediate_size=32)
    file = same("gpt-oss", source, tmp_path, of(_exps="MXFP4", attn_="Q8_0"))
    assert held(file)["model.layers.0.mlp.experts.0.gate_proj"] == "MXFP4"
    assert held(file)["model.layers.0.self_attn.q_proj"] == "Q8_0"
    assert str(built(file).specs["layers"][0]["ffn"]["down"]["weight"].format).startswith("float4")


@pytest.mark.parametrize(("size", "stays"), [(32, True), (16, False)])
def test_columns_of_heads_of_values_are_put_in_order(size, stays, tmp_path):
    """Qwen3.5's last projection: whole groups of columns are moved as codes, and others decoded."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "linear_value_head_dim": size}
    source = make("qwen3.5", tmp_path, **sizes)
    file = same("qwen3.5", source, tmp_path, of(ssm_out="Q8_0", attn_qkv="Q4_0", attn_gate="Q5_1", ffn_="Q4_1"))
    types = held(file)
    assert ("model.layers.0.linear_attn.out_proj" in types) == stays
    assert types["model.layers.0.linear_attn.in_proj_qkv"] == "Q4_0"


def test_parts_of_one_tensor_are_joined_in_blocks_where_they_are_alike(tmp_path):
    """Granite's gate and up."""
    source = make("granite-hybrid", tmp_path, hidden_size=64, intermediate_size=32, mamba_n_heads=8)
    name = "model.layers.0.shared_mlp.input_linear"
    file = same("granite-hybrid", source, tmp_path, of(ffn_gate_shexp="Q8_0", ffn_up_shexp="Q8_0", ssm_in="Q4_0"))
    assert held(file)[name] == "Q8_0"
    assert held(file)["model.layers.0.mamba.in_proj"] == "Q4_0"
    (tmp_path / "blocks.gguf").unlink()
    (tmp_path / "dense.gguf").unlink()
    mixed = same("granite-hybrid", source, tmp_path, of(ffn_gate_shexp="Q8_0", ffn_up_shexp="Q4_0", ssm_in="Q4_0"))
    assert name not in held(mixed)


def test_every_architecture_is_one_that_the_package_knows():
    assert set(TABLE) <= set(gguf.MODEL_ARCH_NAMES.values())


def keyed(name: str, directory: Path, **said) -> Path:
    """A file with other keys."""
    return convert_family(name, make(name, directory), directory / "m.gguf", keys=said)


@pytest.mark.parametrize(
    ("name", "said", "error", "why"),
    [
        ("minimax-m2", {"expert_gating_func": 1}, UnsupportedModelError, r"expert_gating_func: 1 is not read .* 2 \(sigmoid\)"),
        ("granite", {"rope.scaling.finetuned": False}, UnsupportedModelError, "finetuned: Granite with NoPE is not"),
        ("lfm2", {"attention.head_count_kv": [0, 0, 0, 0]}, CheckpointError, "head_count_kv: must be at least 1 in some layer"),
        ("bailingmoe2", {"expert_shared_feed_forward_length": 7}, UnsupportedModelError, "shared experts of another width"),
        ("afmoe", {"expert_weights_norm": False}, UnsupportedModelError, "afmoe.expert_weights_norm: only true is supported"),
        ("mpt", {"attention.max_alibi_bias": 0.0}, UnsupportedModelError, "max_alibi_bias: only MPT with ALiBi is supported"),
        ("lfm2", {"attention.head_count_kv": [0, 2]}, CheckpointError, "head_count_kv: must be a number for each of the 4"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_refused_by_key(name, said, error, why, tmp_path):
    with pytest.raises(error, match=why):
        read_config(keyed(name, tmp_path, **said))


@pytest.mark.parametrize(
    ("key", "value", "error", "why"),
    [
        ("alpha_p", None, CheckpointError, r"xielu.alpha_p: must be a finite number for each of the 2 layers"),
        ("alpha_n", np.array([0.1], np.float32), CheckpointError, "xielu.alpha_n: must be a finite number for each of the 2"),
        ("beta", np.array([0.5, 0.7], np.float32), UnsupportedModelError, r"xielu.beta: this version reads 0.5 in every layer"),
    ],
)
def test_numbers_of_an_activation_are_checked(key, value, error, why, tmp_path):
    files = GGUFFiles(convert_family("apertus", make("apertus", tmp_path), tmp_path / "m.gguf"))
    files.metadata = {k: v for k, v in files.metadata.items() if k != f"xielu.{key}"}
    if value is not None:
        files.metadata |= {f"xielu.{key}": value}
    with pytest.raises(error, match=why):
        translated.__wrapped__(files)


HOSTILE = [0, 3, -1, 2**31 - 1, "x", True, 1e30, math.inf, np.array([], np.int32), np.array([-5] * 9), np.array([0.5] * 9)]


@pytest.mark.parametrize("name", ["qwen3.5", "granite-hybrid", "gemma3n"])
def test_no_value_of_a_key_does_more_than_to_be_refused(name, tmp_path):
    """Each key is left out, and made something else. Either that is read, or refused in words."""
    files = GGUFFiles(convert_family(name, make(name, tmp_path), tmp_path / "m.gguf"))
    sound, refused = dict(files.metadata), []
    for key in (k for k in sound if k.startswith(f"{FAMILIES[name].arch}.")):
        for value in (*HOSTILE, None):
            files.metadata = {k: v for k, v in sound.items() if k != key} | ({} if value is None else {key: value})
            try:
                translated.__wrapped__(files)
            except (CheckpointError, UnsupportedModelError) as e:
                refused.append(str(e))
    assert len(refused) > 50
    assert all(why.startswith(str(files.path)) for why in refused)
