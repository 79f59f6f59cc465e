"""MiniCPM3: latent attention (MLA) with half-split RoPE, scaled embeddings, residuals and logits."""

from __future__ import annotations

import math

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.models.families.common import decoder, eps, hidden_size, layer_count, mlp, pre_norms
from thalweg.models.families.deepseek import latent
from thalweg.models.spec import Layer, ModelSpec


def minicpm3(config: Config) -> ModelSpec:
    hidden, count, heads = hidden_size(config), layer_count(config), integer(config, "num_attention_heads")
    config = {
        "q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, **config,
        "rms_norm_eps": eps(config, default=1e-5), "v_head_dim": integer(config, "v_head_dim", default=hidden // heads),
    }  # fmt: skip
    depth = real({"scale_depth": 1.4, **config}, "scale_depth", default=math.sqrt(count))
    base = integer({"dim_model_base": 256, **config}, "dim_model_base", default=hidden)
    layer = Layer(latent(config, interleaved=False), mlp(config), pre_norms(config), multiplier=depth / math.sqrt(count))
    return decoder(
        config, [layer] * count, embed_scale=real(config, "scale_emb", default=12.0), logit_scale=base / hidden,
        tied=flag(config, "tie_word_embeddings", True),
    )  # fmt: skip
