"""Phi-3, Phi-3.5 and Phi-4: fused q, k and v, fused gate and up, longrope scaling, partial RoPE in Phi-4-mini."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families.common import attention, decoder, eps, head_size, layer_count, mlp, pre_norms, rope
from thalweg.models.spec import Layer, ModelSpec


def phi3(config: Config) -> ModelSpec:
    config = _as_named_now({**config, "rms_norm_eps": eps(config, default=1e-5)})
    head_dim = head_size(config)
    heads = attention(
        config, head_dim=head_dim, rope=rope(config, head_dim, partial=True), fused="qkv_proj",
        window=integer(config, "sliding_window", default=0),
    )  # fmt: skip
    return decoder(config, [Layer(heads, mlp(config, fused="gate_up_proj"), pre_norms(config))] * layer_count(config))


def _as_named_now(config: Config) -> Config:
    """The first files of the family called longrope "su"."""
    section = config.get("rope_scaling")
    return (
        {**config, "rope_scaling": {**section, "type": "longrope"}}
        if isinstance(section, dict) and "su" in section.values()
        else config
    )
