"""Code World Model: Llama with a sliding window on three of four layers."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import eps, layer_count, layer_types, llama_decoder, mlp
from thalweg.models.spec import ModelSpec

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1_000_000.0, "factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def cwm(config: Config) -> ModelSpec:
    config = {**config, "rms_norm_eps": eps(config, default=1e-5)}
    if not (config.get("rope_parameters") or config.get("rope_scaling")):
        config = {**config, "rope_parameters": LLAMA3}
    window = integer(config, "sliding_window", low=0, default=8192)
    absent = ["sliding_attention" if i % 4 else "full_attention" for i in range(layer_count(config))]
    windows = [window if kind == "sliding_attention" else 0 for kind in layer_types(config, absent)]
    head_dim = integer(config, "head_dim", default=128)
    return llama_decoder(config, windows, mlp(config, bias=flag(config, "mlp_bias", False)), head_dim=head_dim)
