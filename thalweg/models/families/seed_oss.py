"""Seed-OSS: Llama with biases on q, k and v, and head_dim independent of hidden_size."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import layer_count, llama_decoder, mlp
from thalweg.models.spec import ModelSpec


def seed_oss(config: Config) -> ModelSpec:
    inner = mlp(config, bias=flag(config, "mlp_bias", False))
    return llama_decoder(
        config, (0,) * layer_count(config), inner, head_dim=integer(config, "head_dim", default=128),
        bias=flag(config, "attention_bias", True), out_bias=flag(config, "attention_out_bias", False),
    )  # fmt: skip
