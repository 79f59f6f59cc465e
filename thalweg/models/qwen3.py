"""Qwen3 (dense): every head's q and k are normalised before rotation; head_dim does not follow from hidden_size."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.models.settings import Settings, layer_windows, settings


def qwen3(config: Config) -> Settings:
    bias = flag(config, "attention_bias", False)
    return settings(
        config,
        windows=layer_windows(config),
        head_dim=integer(config, "head_dim", high=1 << 16, default=128),
        qkv_bias=bias,
        out_bias=bias,
        norm_eps=real(config, "rms_norm_eps", 0, 1, default=1e-6),
    )
