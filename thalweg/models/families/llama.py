"""Llama 1 to 3.3 and the checkpoints that share its class. Config: attention_bias covers all four projections."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag
from thalweg.models.families.common import layer_count, mlp, windowed
from thalweg.models.spec import ModelSpec


def llama(config: Config) -> ModelSpec:
    bias = flag(config, "attention_bias", False)
    inner = mlp(config, bias=flag(config, "mlp_bias", False))
    return windowed(config, (0,) * layer_count(config), inner, bias=bias, out_bias=bias)
