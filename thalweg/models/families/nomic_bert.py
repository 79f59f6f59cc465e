"""Nomic BERT encoder: post-norm layers, RoPE, gated MLPs. nomic-embed-text is of this kind; its version 2 has ungated MLPs and,
in every second layer, a mixture of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import (
    UNGATED,
    act,
    both_ways,
    classes,
    head_size,
    hidden_size,
    layer_count,
    mlp,
    pooling,
    rope,
    ungated_mlp,
)
from thalweg.models.spec import FFN, Layer, LayerNorm, LearnedEmbedding, ModelSpec, MoE, Names, Norms
from thalweg.models.tail import Pooling

PLAIN = {
    "prenorm": False, "parallel_block": False, "use_rms_norm": False, "rotary_emb_interleaved": False,
    "rotary_emb_fraction": 1.0, "rotary_scaling_factor": None, "expert_choice_router": False, "num_shared_experts": 0,
    "moe_normalize_expert_weights": False,
}  # fmt: skip
"""Keys of parts with one supported form in this family -> that form in the published files."""
GATES = {"swiglu": "silu", "geglu": "gelu"}
"""`activation_function` of gated MLPs."""


def nomic_bert(config: Config) -> ModelSpec:
    return _encoder(config, pooling(config, default="mean"), skip=("pooler.", "cls.", "lm_head."))


def nomic_bert_classifier(config: Config) -> ModelSpec:
    return _encoder(config, classes(config, dense="pooler.dense"))


def _encoder(config: Config, tail: Pooling, skip: tuple[str, ...] = ()) -> ModelSpec:
    for key, plain in PLAIN.items():
        if config.get(key, plain) not in (plain, None) and not (key == "rotary_scaling_factor" and config[key] == 1):
            raise UnsupportedModelError(f"config.json: {key}: {config[key]!r:.80} is not supported in this family")
    names = ("attn", "Wqkv", "out_proj", "norm1", "norm2")
    spec = rotary_encoder(
        config, tail, _dense(config), names, base=1000.0, bias=flag(config, "qkv_proj_bias", False), types=2,
        layer="encoder.layers.{}.", norm="emb_ln",
        names=Names(replace=(("nomic_bert.", ""),), skip=(*skip, *(f"nomic_bert.{name}" for name in skip))),
    )  # fmt: skip
    every = integer(config, "moe_every_n_layers", low=0, default=0)
    if not every:
        return spec
    mixed = _moe(config)
    layers = (replace(layer, ffn=mixed) if i % every == 1 else layer for i, layer in enumerate(spec.layers))
    return replace(spec, layers=tuple(layers))


def _dense(config: Config) -> FFN:
    up, down = (flag(config, key, False) for key in ("mlp_fc1_bias", "mlp_fc2_bias"))
    name = text(config, "activation_function", "")
    if name and name not in GATES:
        if up != down:
            raise UnsupportedModelError("config.json: mlp_fc1_bias: must equal mlp_fc2_bias in a model without gates")
        return ungated_mlp(config, up="fc1", down="fc2", act=act(config, "activation_function", known=UNGATED), bias=up)
    for key, section in (("mlp_fc1_bias", up), ("mlp_fc2_bias", down)):
        if section:
            raise UnsupportedModelError(f"config.json: {key}: biases of gated MLPs are not supported in this family")
    return mlp(config, gate="fc12", up="fc11", down="fc2", act=GATES.get(name) or act(config))


def _moe(config: Config) -> MoE:
    """Definition: NomicMoELayer of the checkpoints' own code. The weights of the chosen experts are not normalised, and one
    bias is added to their sum."""
    experts = integer(config, "num_experts", default=8)
    return MoE(
        experts=experts, top_k=integer(config, "moe_top_k", high=experts, default=2),
        inner=integer(config, "intermediate_size"), act=act(config, "activation_function", "gelu", known=UNGATED), gated=False,
        router="router.layer", fused=("experts.mlp.w1", "experts.mlp.w2"), stacked=True, sum_bias="experts.bias",
    )  # fmt: skip


def rotary_encoder(
    config: Config, tail: Pooling, inner: FFN, parts: tuple[str, str, str, str, str], *, base: float, bias: bool, types: int,
    norm: str, **more: Any,
) -> ModelSpec:  # fmt: skip
    """BERT with rotary positions. parts: names of attention, of its two matrices, of the norms after both parts. base: of the
    rotary positions, and types: of tokens, where the configuration has none. norm: of the first layer's input."""
    hidden, eps = hidden_size(config), real(config, "layer_norm_eps", default=1e-12)
    theta = real(config, "rotary_emb_base", default=base)
    mixer, fused, out, first, second = parts
    layer = Layer(
        both_ways(
            config, rope=rope({"rope_theta": theta, **config}, head_size(config)), bias=bias, out_bias=bias, name=mixer,
            fused=fused, out=out,
        ),
        inner, Norms(mixer_sum=LayerNorm(first, hidden, eps), ffn_sum=LayerNorm(second, hidden, eps)),
    )  # fmt: skip
    types = integer(config, "type_vocab_size", low=0, default=types)
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=(layer,) * layer_count(config), norm=None,
        learned=(LearnedEmbedding("embeddings.token_type_embeddings", types, by="type"),) if types else (),
        embed_norm=LayerNorm(norm, hidden, eps), pooling=tail, root="", embed="embeddings.word_embeddings", **more,
    )  # fmt: skip
