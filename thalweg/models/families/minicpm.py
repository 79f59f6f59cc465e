"""MiniCPM 1, 2 and 4: Llama with scaled embeddings, residuals and logits."""

from __future__ import annotations

import math

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import attention, decoder, hidden_size, layer_count, mlp, pre_norms
from thalweg.models.spec import Layer, ModelSpec


def minicpm(config: Config) -> ModelSpec:
    """Additions to the stream are multiplied by scale_depth over the root of the number of layers."""
    for key, what in (("num_experts", "experts"), ("sparse_config", "sparse attention")):
        if config.get(key):
            raise UnsupportedModelError(f"config.json: {key}: this version serves MiniCPM without {what}")
    count, bias = layer_count(config), flag(config, "attention_bias", False)
    depth = real(config, "scale_depth", default=1.0) / math.sqrt(count)
    layer = Layer(attention(config, bias=bias, out_bias=bias), mlp(config), pre_norms(config), multiplier=depth)
    return decoder(
        config, [layer] * count, embed_scale=real(config, "scale_emb", default=1.0),
        logit_scale=integer(config, "dim_model_base", default=1) / hidden_size(config),
        tied=flag(config, "tie_word_embeddings", True),
    )  # fmt: skip
