"""Granite 3 and 4, dense: Llama with multipliers of embeddings, of scores, of what is added to the residual stream, and a
divisor of logits."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, real
from thalweg.models.families.common import attention, decoder, layer_count, mlp, pre_norms
from thalweg.models.spec import Layer, ModelSpec


def granite(config: Config) -> ModelSpec:
    bias = flag(config, "attention_bias", False)
    heads = attention(config, bias=bias, out_bias=bias, scale=multiplier(config, "attention_multiplier"))
    inner = mlp(config, bias=flag(config, "mlp_bias", False))
    layer = Layer(heads, inner, pre_norms(config), multiplier=multiplier(config, "residual_multiplier"))
    return decoder(config, [layer] * layer_count(config), **scales(config))


def scales(config: Config) -> dict[str, Any]:
    """Those around the layers."""
    return {
        "embed_scale": multiplier(config, "embedding_multiplier"),
        "logit_scale": 1.0 / multiplier(config, "logits_scaling"),
    }


def multiplier(config: Config, key: str) -> float:
    return real(config, key, 1e-6, 1e6, default=1.0)
