"""Granite 3 (dense): Llama whose embeddings, attention scores, residual additions and logits are each multiplied."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, real
from thalweg.models.families.common import layer_count, mlp, windowed
from thalweg.models.spec import ModelSpec


def granite(config: Config) -> ModelSpec:
    bias = flag(config, "attention_bias", False)
    by = {
        key: real(config, key, 1e-6, 1e6, default=1.0)
        for key in ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    }
    spec = windowed(
        config, (0,) * layer_count(config), mlp(config, bias=flag(config, "mlp_bias", False)),
        bias=bias, out_bias=bias, scale=by["attention_multiplier"],
    )  # fmt: skip
    return replace(
        spec,
        layers=tuple(replace(layer, multiplier=by["residual_multiplier"]) for layer in spec.layers),
        embed_scale=by["embedding_multiplier"],
        logit_scale=1 / by["logits_scaling"],
    )
