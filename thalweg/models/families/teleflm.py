"""Tele-FLM: Llama with multipliers of embeddings and logits (muP, https://arxiv.org/abs/2304.06875)."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, real
from thalweg.models.families.llama import llama
from thalweg.models.spec import ModelSpec


def teleflm(config: Config) -> ModelSpec:
    result = llama(config)
    if not flag(config, "use_mup", False):
        return result
    scale = real(config, "output_mult", 1e-9, 1e9, default=1.0) / real(config, "mup_scale_factor", 1e-9, 1e9, default=1.0)
    return replace(result, embed_scale=real(config, "input_mult", 1e-9, 1e9, default=1.0), logit_scale=scale)
