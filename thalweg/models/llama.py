"""Llama 1 to 3.3 and the checkpoints that share its class. Config: attention_bias covers all four projections."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag
from thalweg.models.settings import Settings, settings


def llama(config: Config) -> Settings:
    bias = flag(config, "attention_bias", False)
    return settings(config, qkv_bias=bias, out_bias=bias, mlp_bias=flag(config, "mlp_bias", False))
