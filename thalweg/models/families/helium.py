"""Helium: Llama with interleaved RoPE."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag
from thalweg.models.families.common import head_size, layer_count, llama_decoder, mlp, rope
from thalweg.models.spec import ModelSpec


def helium(config: Config) -> ModelSpec:
    config = {"head_dim": 128, "num_key_value_heads": 20, "rms_norm_eps": 1e-8, **config}
    turned = rope({"rope_theta": 100_000.0, **config}, head_size(config), interleaved=True)
    inner = mlp(config, bias=flag(config, "mlp_bias", False))
    return llama_decoder(config, (0,) * layer_count(config), inner, rope=turned, bias=flag(config, "attention_bias", False))
