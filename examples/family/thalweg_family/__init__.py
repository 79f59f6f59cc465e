"""Helium 1: Llama with rotary positions in neighbouring pairs, and heads whose size does not follow from hidden_size."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import eps, layer_count, llama_decoder, mlp, rope
from thalweg.models.spec import ModelSpec


def helium(config: Config) -> ModelSpec:
    config = {"rope_theta": 100_000.0, **config, "rms_norm_eps": eps(config, default=1e-8)}
    head_dim = integer(config, "head_dim", high=1 << 16, default=128)
    return llama_decoder(
        config, (0,) * layer_count(config), mlp(config, bias=flag(config, "mlp_bias", False)), head_dim=head_dim,
        rope=rope(config, head_dim, interleaved=True), bias=flag(config, "attention_bias", False),
    )  # fmt: skip
