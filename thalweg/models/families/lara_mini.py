"""Lara Mini: gated delta nets on two of five layers, attention with QK-norm on the others, with windows and RoPE or NoPE, and
a mixture with a shared expert on every layer."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import attention, decoder, eps, layer_count, layer_types, pre_norms
from thalweg.models.families.qwen3_next import build_delta, build_mixture
from thalweg.models.spec import Attention, DeltaNet, HeadNorm, Layer, ModelSpec

DELTA, FULL, WINDOW = "linear_attention", "full_attention", "sliding_attention"
PATTERN = (DELTA, WINDOW, DELTA, FULL, WINDOW)
"""Of layers without `layer_types`."""


def lara_mini(config: Config) -> ModelSpec:
    config = {
        "head_dim": 128, "num_key_value_heads": 4, "sliding_window": 512, "linear_num_key_heads": 8,
        "linear_num_value_heads": 16, "num_experts": 128, "num_experts_per_tok": 4, "tie_word_embeddings": True, **config,
    }  # fmt: skip
    bias = flag(config, "attention_bias", False)
    local = attention(config, window=integer(config, "sliding_window"), norm=HeadNorm(eps(config)), bias=bias, out_bias=bias)
    mixers: dict[str, Attention | DeltaNet] = {
        DELTA: replace(build_delta(config, False), joined=True), WINDOW: local, FULL: replace(local, window=0, rope=None),
    }  # fmt: skip
    absent = [PATTERN[i % len(PATTERN)] for i in range(layer_count(config))]
    moe, norms = replace(build_mixture(config), shared_gate=""), pre_norms(config)
    return decoder(config, [Layer(mixers[kind], moe, norms) for kind in layer_types(config, absent, (DELTA, FULL, WINDOW))])
