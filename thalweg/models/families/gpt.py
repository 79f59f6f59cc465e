"""GPT-2, with learned positions and transposed matrices, and GPT-J, with parallel attention and MLP and interleaved RoPE."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import UNGATED, act, attention, decoder, head_size, hidden_size, layer_count, rope
from thalweg.models.families.tails import classifier, embedder
from thalweg.models.spec import Attention, Layer, LayerNorm, LearnedEmbedding, ModelSpec, Names, Norms, Rope, UngatedMLP


def gpt2(config: Config) -> ModelSpec:
    if flag(config, "scale_attn_by_inverse_layer_idx", False) or not flag(config, "scale_attn_weights", True):
        raise UnsupportedModelError("config.json: this version scales all scores of GPT-2 by the root of a head's size")
    heads = integer(config, "num_attention_heads")
    layer = Layer(
        Attention(
            heads=heads, kv_heads=heads, head_dim=head_size(config), bias=True, out_bias=True, name="attn", fused="c_attn",
            out="c_proj", turned=True,
        ),
        _inner(config, up="c_fc", down="c_proj", turned=True),
        Norms(mixer=_norm(config, "ln_1"), ffn=_norm(config, "ln_2")),
    )  # fmt: skip
    positions = LearnedEmbedding("wpe", integer(config, "max_position_embeddings", high=1 << 24))
    return _model(config, layer, tied=flag(config, "tie_word_embeddings", True), learned=(positions,))


def gpt2_classifier(config: Config) -> ModelSpec:
    return classifier(gpt2(config), config)


def gpt2_embedder(config: Config) -> ModelSpec:
    return embedder(gpt2(config), config)


def gpt_bigcode(config: Config) -> ModelSpec:
    """SantaCoder and StarCoder: GPT-2 with one head of keys, and matrices as usual."""
    if not flag(config, "scale_attn_weights", True):
        raise UnsupportedModelError("config.json: scale_attn_weights: this version scales scores by the root of a head's size")
    heads = integer(config, "num_attention_heads")
    config = {"activation_function": "gelu_pytorch_tanh", **config}
    one = flag(config, "multi_query", True)
    layer = Layer(
        Attention(
            heads=heads, kv_heads=1 if one else heads, head_dim=head_size(config), bias=True, out_bias=True, name="attn",
            fused="c_attn", grouped=not one, out="c_proj",
        ),
        _inner(config, up="c_fc", down="c_proj"),
        Norms(mixer=_norm(config, "ln_1"), ffn=_norm(config, "ln_2")),
    )  # fmt: skip
    positions = LearnedEmbedding("wpe", integer(config, "max_position_embeddings", high=1 << 24))
    return _model(config, layer, tied=flag(config, "tie_word_embeddings", True), learned=(positions,))


def gptj(config: Config) -> ModelSpec:
    dim = integer(config, "rotary_dim", high=head_size(config), default=64)
    config = {**config, "num_key_value_heads": None}
    said = rope(config, head_size(config))
    layer = Layer(
        attention(config, rope=Rope(said.parameters, dim, said.trained, interleaved=True), name="attn", out="out_proj"),
        _inner(config, up="fc_in", down="fc_out"),
        Norms(mixer=_norm(config, "ln_1")), parallel=True,
    )  # fmt: skip
    return _model(config, layer, head_bias=True)


def _inner(config: Config, **names: Any) -> UngatedMLP:
    inner = integer(config, "n_inner", high=1 << 24, default=4 * hidden_size(config))
    return UngatedMLP(inner=inner, act=act(config, "activation_function", "gelu_new", UNGATED), bias=True, **names)


def _norm(config: Config, name: str) -> LayerNorm:
    return LayerNorm(name, hidden_size(config), real(config, "layer_norm_epsilon", default=1e-5))


def _model(config: Config, layer: Layer, **more: Any) -> ModelSpec:
    masks = (f"{root}h.{i}.attn.{b}" for root in ("", "transformer.") for i in range(layer_count(config))
             for b in ("bias", "masked_bias"))  # fmt: skip
    return decoder(
        config, [layer] * layer_count(config), norm=_norm(config, "ln_f"), root="transformer.", layer="h.{}.", embed="wte",
        names=Names(skip=tuple(masks)), **more,
    )  # fmt: skip
