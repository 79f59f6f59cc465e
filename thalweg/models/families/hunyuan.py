"""HunYuan, dense: Llama with norms of every head's q and k after rotation."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, real, rope_parameters
from thalweg.models.families.common import attention, decoder, eps, head_size, layer_count, mlp, pre_norms
from thalweg.models.spec import HeadNorm, Layer, ModelSpec


def hunyuan(config: Config) -> ModelSpec:
    config = stretched({**config, "rms_norm_eps": eps(config, default=1e-5)})
    bias = flag(config, "attention_bias", False)
    norm = HeadNorm(eps(config), after=True, q="query_layernorm", k="key_layernorm")
    layer = Layer(attention(config, bias=bias, out_bias=bias, norm=norm), mlp(config), pre_norms(config))
    return decoder(config, [layer] * layer_count(config))


def stretched(config: Config) -> Config:
    """Their "dynamic" scaling with an `alpha` is a larger base, whatever the length."""
    said = rope_parameters(config)
    if said["rope_type"] != "dynamic" or not said.get("alpha"):
        return config
    dim = head_size(config)
    base = said["rope_theta"] * real(said, "alpha", 1e-3, 1e9, where="rope_parameters") ** (dim / (dim - 2))
    return {**config, "rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": base}}
