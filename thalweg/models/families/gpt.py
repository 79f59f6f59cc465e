"""GPT-2, with learned positions and transposed matrices, GPT-J, with parallel parts and interleaved RoPE, and GPT-Neo,
with windows and unscaled scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
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
        inner_mlp(config, up="c_fc", down="c_proj", turned=True),
        Norms(mixer=layer_norm(config, "ln_1"), ffn=layer_norm(config, "ln_2")),
    )  # fmt: skip
    positions = LearnedEmbedding("wpe", integer(config, "max_position_embeddings", high=1 << 24))
    return gpt_decoder(config, layer, tied=flag(config, "tie_word_embeddings", True), learned=(positions,))


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
        inner_mlp(config, up="c_fc", down="c_proj"),
        Norms(mixer=layer_norm(config, "ln_1"), ffn=layer_norm(config, "ln_2")),
    )  # fmt: skip
    positions = LearnedEmbedding("wpe", integer(config, "max_position_embeddings", high=1 << 24))
    return gpt_decoder(config, layer, tied=flag(config, "tie_word_embeddings", True), learned=(positions,))


def gptj(config: Config) -> ModelSpec:
    dim = integer(config, "rotary_dim", high=head_size(config), default=64)
    config = {**config, "num_key_value_heads": None}
    section = rope(config, head_size(config))
    layer = Layer(
        attention(config, rope=Rope(section.parameters, dim, section.trained, interleaved=True), name="attn", out="out_proj"),
        inner_mlp(config, up="fc_in", down="fc_out"),
        Norms(mixer=layer_norm(config, "ln_1")), parallel=True,
    )  # fmt: skip
    return gpt_decoder(config, layer, head_bias=True)


def gpt_neo(config: Config) -> ModelSpec:
    heads = integer(config, "num_attention_heads")
    config = {**config, "n_inner": config.get("intermediate_size")}
    window = integer(config, "window_size", high=1 << 24, default=256)
    norms, inner = (
        Norms(mixer=layer_norm(config, "ln_1"), ffn=layer_norm(config, "ln_2")),
        inner_mlp(config, up="c_fc", down="c_proj"),
    )
    layers = {
        kind: Layer(
            Attention(
                heads=heads, kv_heads=heads, head_dim=head_size(config), window=w, scale=1.0, out_bias=True,
                name="attn.attention", out="out_proj",
            ),
            inner, norms,
        )
        for kind, w in (("global", 0), ("local", window))
    }  # fmt: skip
    kinds = _attention_kinds(config)
    result = gpt_decoder(
        config, layers["global"], tied=flag(config, "tie_word_embeddings", True),
        learned=(LearnedEmbedding("wpe", integer(config, "max_position_embeddings", high=1 << 24)),),
    )  # fmt: skip
    masks = (f"{root}h.{i}.attn.attention.{b}" for root in ("", "transformer.") for i in range(len(kinds))
             for b in ("bias", "masked_bias"))  # fmt: skip
    return replace(result, layers=tuple(layers[kind] for kind in kinds), names=Names(skip=tuple(masks)))


def _attention_kinds(config: Config) -> list[str]:
    """ "global" or "local" for each layer, of `attention_types`: lists of such names, with a count for each."""
    section = config.get("attention_types") or [[["global", "local"], layer_count(config) // 2]]
    try:
        kinds = [kind for names, count in section for _ in range(count) for kind in names]
    except (TypeError, ValueError) as e:
        raise CheckpointError(f"config.json: attention_types: must be a list of [names, count]: {e}") from e
    if len(kinds) != layer_count(config) or not all(kind in ("global", "local") for kind in kinds):
        raise CheckpointError(
            f"config.json: attention_types: must name global or local for each of {layer_count(config)} layers"
        )
    return kinds


def inner_mlp(config: Config, **names: Any) -> UngatedMLP:
    inner = integer(config, "n_inner", high=1 << 24, default=4 * hidden_size(config))
    return UngatedMLP(inner=inner, act=act(config, "activation_function", "gelu_new", UNGATED), bias=True, **names)


def layer_norm(config: Config, name: str) -> LayerNorm:
    return LayerNorm(name, hidden_size(config), real(config, "layer_norm_epsilon", default=1e-5))


def gpt_decoder(config: Config, layer: Layer, **more: Any) -> ModelSpec:
    masks = (f"{root}h.{i}.attn.{b}" for root in ("", "transformer.") for i in range(layer_count(config))
             for b in ("bias", "masked_bias", "causal_mask"))  # fmt: skip
    return decoder(
        config, [layer] * layer_count(config), norm=layer_norm(config, "ln_f"), root="transformer.", layer="h.{}.", embed="wte",
        names=Names(skip=tuple(masks)), **more,
    )  # fmt: skip
