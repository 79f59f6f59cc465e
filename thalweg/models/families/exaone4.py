"""EXAONE 4: post-norm layers, QK-norm, sliding windows on three of four layers, NoPE on the full-attention layers of such
models."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families.common import attention, decoder, eps, hidden_size, layer_count, layer_types, mlp, sliding_window
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, Norm, Norms


def exaone4(config: Config) -> ModelSpec:
    config = {**config, "rms_norm_eps": eps(config, default=1e-5)}
    hidden, e, window = hidden_size(config), eps(config), sliding_window(config)
    norms = Norms(mixer_out=Norm("post_attention_layernorm", hidden, e), ffn_out=Norm("post_feedforward_layernorm", hidden, e))
    full = attention(config, norm=HeadNorm(e))
    kinds = {
        "sliding_attention": Layer(replace(full, window=window), mlp(config), norms),
        "full_attention": Layer(replace(full, rope=None) if window else full, mlp(config), norms),
    }
    return decoder(config, [kinds[kind] for kind in layer_types(config, windows_by_pattern(config, window))])


def windows_by_pattern(config: Config, window: int) -> list[str]:
    """By `sliding_window_pattern`: of so many layers the last sees everything; or letters, L for those with a window."""
    section, layers = config.get("sliding_window_pattern"), layer_count(config)
    if not window:
        return ["full_attention"] * layers
    if isinstance(section, str) and section and set(section) <= set("LG"):
        return [
            "full_attention" if section[i % len(section)] == "G" or i == layers - 1 else "sliding_attention"
            for i in range(layers)
        ]
    every = integer(config, "sliding_window_pattern", default=4)
    return ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
