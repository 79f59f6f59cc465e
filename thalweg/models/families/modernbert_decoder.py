"""ModernBERT decoder (Ettin): ModernBERT with causal attention, separate q, k and v, and BERT's head before the output
matrix."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import (
    UNGATED,
    act,
    attention,
    decoder,
    head_size,
    hidden_size,
    layer_count,
    layer_types,
    mlp,
    rope,
)
from thalweg.models.families.modernbert import norm_eps, rotary_settings
from thalweg.models.spec import DenseNorm, Layer, LayerNorm, ModelSpec, Norms

FULL, WINDOW = "full_attention", "sliding_attention"


def modernbert_decoder(config: Config) -> ModelSpec:
    hidden, head_dim, biased = hidden_size(config), head_size(config), flag(config, "attention_bias", False)

    def norm(name: str) -> LayerNorm:
        return LayerNorm(name, hidden, norm_eps(config), bias=flag(config, "norm_bias", False))

    heads, turning = {**config, "num_key_value_heads": None}, rotary_settings(config)
    local = 0 if config.get("local_attention", 128) is None else integer(config, "local_attention", default=128) // 2
    mixers = {
        kind: attention(
            heads, rope=rope(turning, head_dim, kind=kind), window=local if kind == WINDOW else 0, bias=biased,
            out_bias=biased, name="attn", out="Wo",
        )
        for kind in (FULL, WINDOW)
    }  # fmt: skip
    inner = mlp(
        config, fused="Wi", down="Wo", bias=flag(config, "mlp_bias", False), act=act(config, "hidden_activation", "gelu")
    )
    every = integer(config, "global_attn_every_n_layers", default=3)
    absent = [WINDOW if i % every else FULL for i in range(layer_count(config))]
    layers = [
        Layer(mixers[kind], inner, Norms(mixer=norm("attn_norm") if i else None, ffn=norm("mlp_norm")))
        for i, kind in enumerate(layer_types(config, absent))
    ]
    last = DenseNorm(
        "lm_head.dense", norm("lm_head.norm"), act(config, "classifier_activation", "gelu", UNGATED),
        flag(config, "classifier_bias", False), norm("final_norm"),
    )  # fmt: skip
    return decoder(
        config, layers, norm=last, embed_norm=norm("embeddings.norm"), embed="embeddings.tok_embeddings", head="decoder",
        head_bias=flag(config, "decoder_bias", True), tied=flag(config, "tie_word_embeddings", True),
    )  # fmt: skip
