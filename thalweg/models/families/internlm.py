"""InternLM 1 to 3: Llama with optional biases, and InternLM 2 (and its reward models) under other names with fused q, k and
v."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import (
    attention,
    decoder,
    eps,
    head_size,
    hidden_size,
    layer_count,
    llama_decoder,
    mlp,
    token_classes,
)
from thalweg.models.families.tails import attach_tail
from thalweg.models.spec import Layer, ModelSpec, Names, Norm, Norms


def internlm(config: Config) -> ModelSpec:
    bias = flag(config, "bias", True)
    return llama_decoder(config, (0,) * layer_count(config), mlp(config), bias=bias, out_bias=bias)


def internlm2(config: Config) -> ModelSpec:
    config, hidden = {**config, "rms_norm_eps": eps(config, default=1e-5)}, hidden_size(config)
    bias, e = flag(config, "bias", False), eps(config)
    layer = Layer(
        attention(config, name="attention", fused="wqkv", grouped=True, out="wo", bias=bias, out_bias=bias),
        mlp(config, name="feed_forward", gate="w1", up="w3", down="w2"),
        Norms(mixer=Norm("attention_norm", hidden, e), ffn=Norm("ffn_norm", hidden, e)),
    )
    return decoder(config, [layer] * layer_count(config), embed="tok_embeddings", head="output")


def internlm2_ve(config: Config) -> ModelSpec:
    """InternLM 2 with further MLPs for tokens of images, for text."""
    result = internlm2(config)
    return replace(result, names=Names(skip=tuple(f"model.layers.{i}.feed_forward_ve." for i in range(layer_count(config)))))


def internlm2_reward(config: Config) -> ModelSpec:
    """A number for every token, of which the last one's is the text's."""
    named = {**config, "id2label": {0: "LABEL_0"}}
    return attach_tail(internlm2(config), token_classes(named, mode="last", out="v_head", bias=False))


def internlm3(config: Config) -> ModelSpec:
    """`qkv_bias` and `bias` are how the hub's files say it, attention_bias and mlp_bias how transformers does."""
    config = {**config, "rms_norm_eps": eps(config, default=1e-5)}
    other = flag(config, "bias", flag(config, "mlp_bias", False))
    into = flag(config, "qkv_bias", flag(config, "attention_bias", False))
    head_dim = integer(config, "head_dim", default=head_size(config))
    return llama_decoder(
        config, (0,) * layer_count(config), mlp(config, bias=other), head_dim=head_dim, bias=into, out_bias=other
    )
