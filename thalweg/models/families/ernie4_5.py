"""Ernie 4.5, dense: Llama with rotary positions in neighbouring pairs; one setting adds biases everywhere."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import attention, decoder, eps, layer_count, mlp, pre_norms, rope
from thalweg.models.spec import Attention, Layer, ModelSpec


def ernie4_5(config: Config) -> ModelSpec:
    config = defaults(config)
    inner = mlp(config, bias=flag(config, "use_bias", False))
    layer = Layer(heads(config, integer(config, "head_dim", high=1 << 16, default=128)), inner, pre_norms(config))
    return decoder(config, [layer] * layer_count(config), tied=flag(config, "tie_word_embeddings", True))


def defaults(config: Config) -> Config:
    return {"rope_theta": 500_000.0, **config, "rms_norm_eps": eps(config, default=1e-5)}


def heads(config: Config, head_dim: int) -> Attention:
    bias = flag(config, "use_bias", False)
    return attention(
        config, head_dim=head_dim, rope=rope(config, head_dim, interleaved=True), bias=bias, out_bias=bias
    )  # fmt: skip
