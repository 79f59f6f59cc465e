"""GLM-4 (9B, 2024): Llama with interleaved RoPE on half of each head, fused gate and up."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import attention, decoder, eps, layer_count, mlp, pre_norms, rope
from thalweg.models.spec import Layer, ModelSpec


def glm(config: Config) -> ModelSpec:
    config = {"partial_rotary_factor": 0.5, **config, "rms_norm_eps": eps(config, default=1.5625e-07)}
    head_dim = integer(config, "head_dim", default=128)
    turned = rope(config, head_dim, partial=True, interleaved=True)
    heads = attention(config, head_dim=head_dim, rope=turned, bias=flag(config, "attention_bias", True))
    return decoder(config, [Layer(heads, mlp(config, fused="gate_up_proj"), pre_norms(config))] * layer_count(config))
