"""Bytes are counted by walking the declarations: what is counted is what a model holds, for every family."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from zoo import ALL, ENCODERS, SMALL

from thalweg.checkpoint.safetensors import open_checkpoint
from thalweg.checkpoint.spelling import canonical_config
from thalweg.hal.comm import Mesh
from thalweg.hal.discovery import load
from thalweg.hal.op import Binder
from thalweg.hal.platform import Place
from thalweg.models import registry, sizes
from thalweg.models.build import build
from thalweg.models.load import load_params
from thalweg.models.step import make_state
from thalweg.models.weights import walk

DEVICE = load("reference").open(Place())
LENGTH = 48


def config(name: str) -> dict:
    kind, different = (ALL | ENCODERS)[name]
    made = canonical_config(kind(**{**SMALL, **different}).to_dict())
    whole = kind.__name__.removesuffix("Config")
    bare = f"{whole}Model" if name in ENCODERS else f"{whole.removesuffix('Text')}ForCausalLM"
    made["architectures"] = [ARCHITECTURE.get(name, bare)]
    return made


ARCHITECTURE = {
    "gpt2": "GPT2LMHeadModel", "openai-gpt": "OpenAIGPTLMHeadModel", "bert-lm": "BertLMHeadModel",
    "bert-lm-untied": "BertLMHeadModel",
    "bert-generation": "BertGenerationDecoder", "hrm-text": "HrmTextForCausalLM",
}  # fmt: skip
"""Where it does not follow from the configuration's name."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted(ALL | ENCODERS))
@pytest.mark.sampled(8)
def test_the_bytes_counted_are_the_bytes_held(name: str, dtype: str) -> None:
    read = config(name)
    model = build(read, binder=Binder(()), attention=DEVICE.attention, mesh=Mesh(), dtype=dtype, max_len=LENGTH, block_tokens=4)
    params = load_params(model, Path("nowhere"), DEVICE, load_format="dummy", progress=False)
    held = {t.data_ptr(): t.nbytes for _, t in walk(params) if isinstance(t, torch.Tensor)}
    spec = registry.family(read)(read)
    assert sizes.weight_bytes(spec, dtype, LENGTH) == sum(held.values())
    assert sizes.kv_groups(sizes.cache_specs(spec, dtype, "", LENGTH), 4, 4) == model.groups
    kept = sum(g.bytes_per_block for g in model.groups)
    assert (kept == 0) == (name in ENCODERS)


@pytest.mark.parametrize(
    "name",
    ["llama-tied", "mixtral", "qwen3-moe", "gemma3", "gemma4", "glm4", "qwen3-next", "qwen3.5", "nemotron-h", "jamba", "lfm2"],
)
def test_the_values_counted_are_those_of_the_files(name: str, tmp_path: Path) -> None:
    from zoo import make_checkpoint

    path = make_checkpoint(name, tmp_path, tokenizer=False)
    read = config(name)
    assert sizes.stored_values(registry.family(read)(read)) == open_checkpoint(path).values


def test_the_values_counted_of_an_encoder_are_those_of_the_tensors_it_reads(tmp_path: Path) -> None:
    from zoo import make_encoder

    stored = open_checkpoint(make_encoder("bert", tmp_path))
    read = config("bert")
    spec = registry.family(read)(read)
    left_out = [n for n in stored.names if spec.rename(n) is None]
    assert left_out == ["pooler.dense.bias", "pooler.dense.weight"]
    hidden = SMALL["hidden_size"]
    assert sizes.stored_values(spec) == stored.values - hidden * (hidden + 1)


def test_a_layer_that_reads_another_cache_has_none() -> None:
    """Layers 4 and 5 read what layers 3 and 2 keep; heads of layers that see everything are twice as wide, and half as many."""
    read = config("gemma4")
    model = build(read, binder=Binder(()), attention=DEVICE.attention, mesh=Mesh(), dtype="float32", max_len=48, block_tokens=4)
    assert [(g.kind, g.layers, g.bytes_per_block) for g in model.groups] == [
        ("window", (0, 1, 3), 3 * 4 * 2 * 2 * 16 * 4), ("full", (2,), 4 * 2 * 1 * 32 * 4),
    ]  # fmt: skip
    assert model.layer_group == (0, 0, 1, 0, 0, 1)
    held = make_state(model, DEVICE, blocks=[3, 3], slots=2, max_len=8)["kv"]
    assert [isinstance(cache, torch.Tensor) for cache in held] == [True] * 4 + [False] * 2
    spec = registry.family(read)(read)
    one, two = (sizes.step_work(spec, "float32", sizes.DENSE_FORMATS, 1, 1, n).bytes for n in (0, 1))
    assert two - one == (4 + 2) * 2 * 32 * 4  # keys and values of one more token, for each layer that attends to them
    other = replace(spec.layers[1], mixer=replace(spec.layers[1].mixer, reads=0, heads=8))
    with pytest.raises(ValueError, match="layer 1 cannot read the cache of layer 0"):
        replace(spec, layers=(spec.layers[0], other))


def test_latents_are_read_once_and_attended_to_by_every_head() -> None:
    read = config("deepseek-v3")
    spec = registry.family(read)(read)
    one, two = (sizes.step_work(spec, "float32", sizes.DENSE_FORMATS, 1, 1, n) for n in (100, 101))
    layers, heads, latent, rotated = 3, SMALL["num_attention_heads"], 32, 16
    assert two.bytes - one.bytes == layers * (latent + rotated) * 4
    assert two.flops - one.flops == layers * 2 * heads * ((latent + rotated) + latent)


def test_a_step_of_a_mixture_reads_as_many_experts_as_tokens_can_choose() -> None:
    read = config("qwen3-moe")
    spec = registry.family(read)(read)
    one, two, many = (sizes.step_work(spec, "float32", sizes.DENSE_FORMATS, n, 1, 0).bytes for n in (1, 2, 99))
    expert = 3 * 24 * SMALL["hidden_size"] * 4
    cache = 3 * 2 * 2 * 2 * 16 * 4  # layers, twice the new token (written, read), k and v, heads, values, bytes
    assert two - one == 2 * 2 * expert + cache  # two layers are mixtures, two experts a token
    assert many - one == 2 * 4 * expert + 98 * cache  # and there are six
