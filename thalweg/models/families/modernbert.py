"""ModernBERT encoder: RoPE, pre-norm except before the first attention, gated MLPs. Most layers have bidirectional
sliding windows, every third has full attention. A classifier's head is a layer, an activation and a norm before the numbers."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real, section, text
from thalweg.errors import CheckpointError
from thalweg.models.families.common import (
    act,
    both_ways,
    classes,
    head_size,
    hidden_size,
    layer_count,
    layer_types,
    mlp,
    pooling,
    rope,
    token_classes,
)
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Names, Norms
from thalweg.models.tail import Pooling

KINDS = {"full_attention": ("global_rope_theta", 160_000.0), "sliding_attention": ("local_rope_theta", 10_000.0)}
"""Layer type -> the key of its rotary base in older files, and its default."""


def modernbert(config: Config) -> ModelSpec:
    return _encoder(config, pooling(config, default="cls"), skip=("head.", "decoder."))


def modernbert_classifier(config: Config) -> ModelSpec:
    return _encoder(config, classes(config, mode=text(config, "classifier_pooling", "cls"), **_head(config)))


def modernbert_of_tokens(config: Config) -> ModelSpec:
    return _encoder(config, token_classes(config, **_head(config)))


def _head(config: Config) -> dict[str, Any]:
    """The prediction head before the classifier."""
    if flag(config, "norm_bias", False):
        raise CheckpointError("config.json: norm_bias: this version reads classifiers of this family without it")
    return {
        "dense": "head.dense", "dense_bias": flag(config, "classifier_bias", False), "norm": "head.norm",
        "eps": norm_eps(config), "act": act(config, "classifier_activation", "gelu", {"gelu": "gelu"}),
    }  # fmt: skip


def _encoder(config: Config, tail: Pooling, skip: tuple[str, ...] = ()) -> ModelSpec:
    hidden, head_dim, biased = hidden_size(config), head_size(config), flag(config, "attention_bias", False)

    def norm(name: str) -> LayerNorm:
        return LayerNorm(name, hidden, norm_eps(config), bias=flag(config, "norm_bias", False))

    inner = mlp(
        config, name="mlp", fused="Wi", down="Wo", bias=flag(config, "mlp_bias", False),
        act=act(config, "hidden_activation", "gelu"),
    )  # fmt: skip
    every = integer(config, "global_attn_every_n_layers", default=3)
    absent = ["sliding_attention" if i % every else "full_attention" for i in range(layer_count(config))]
    layers = []
    for i, kind in enumerate(layer_types(config, absent)):
        window = integer(config, "local_attention", default=128) // 2 + 1 if kind == "sliding_attention" else 0
        mixer = both_ways(
            config, rope=rope(rotary_settings(config), head_dim, kind=kind), window=window, bias=biased, out_bias=biased,
            name="attn", fused="Wqkv", out="Wo",
        )  # fmt: skip
        layers.append(Layer(mixer, inner, Norms(mixer=norm("attn_norm") if i else None, ffn=norm("mlp_norm"))))
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=tuple(layers), norm=norm("final_norm"),
        embed_norm=norm("embeddings.norm"), pooling=tail, embed="embeddings.tok_embeddings", names=Names(skip=skip),
    )  # fmt: skip


def rotary_settings(config: Config) -> Config:
    """With rotary settings by layer type, as newer files have them. `rope_scaling` is one for all, as transformers reads it."""
    found: dict[str, Any] = {}
    settings, scaling = section(config, "rope_parameters"), section(config, "rope_scaling")
    for kind, (key, base) in KINDS.items():
        own = section(settings, kind, "config.json: rope_parameters")
        found[kind] = {"rope_theta": real(config, key, 1e-3, 1e15, default=base), **own, **scaling}
    return {**config, "rope_parameters": found, "rope_scaling": None}


def norm_eps(config: Config) -> float:
    return real(config, "norm_eps", default=1e-5)
