"""Solar Open: Llama's attention, sigmoid routers with expert bias on every layer."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import attention, decoder, eps, layer_count, pre_norms, rope
from thalweg.models.families.mixtures import sigmoid_mixture
from thalweg.models.spec import Layer, ModelSpec


def solar_open(config: Config) -> ModelSpec:
    config = {"rope_theta": 1_000_000.0, **config, "rms_norm_eps": eps(config, default=1e-5)}
    head_dim = integer(config, "head_dim", default=128)
    heads = attention(
        config, head_dim=head_dim, rope=rope(config, head_dim, partial=True), bias=flag(config, "attention_bias", False)
    )
    return decoder(config, [Layer(heads, sigmoid_mixture(config, inner=1280), pre_norms(config))] * layer_count(config))
