"""SmolLM3: Llama with NoPE on every fourth layer."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.common import attention, decoder, layer_count, layer_types, mlp, pre_norms
from thalweg.models.spec import Layer, ModelSpec


def smollm3(config: Config) -> ModelSpec:
    config = {"rope_theta": 2_000_000.0, **config}
    turns, bias = _turns(config), flag(config, "attention_bias", False)
    window = integer(config, "sliding_window", default=0) if flag(config, "use_sliding_window", False) else 0
    absent = ["sliding_attention" if window and not turn else "full_attention" for turn in turns]
    heads, norms = attention(config, bias=bias, out_bias=bias), pre_norms(config)
    inner = mlp(config, bias=flag(config, "mlp_bias", False))
    layers = [
        Layer(replace(heads, rope=heads.rope if turn else None, window=window if "sliding" in kind else 0), inner, norms)
        for turn, kind in zip(turns, layer_types(config, absent), strict=True)
    ]
    return decoder(config, layers, tied=flag(config, "tie_word_embeddings", True))


def _turns(config: Config) -> list[bool]:
    """`no_rope_layers` for each layer: 1 means that the layer has RoPE."""
    layers, every = layer_count(config), integer(config, "no_rope_layer_interval", default=4)
    section = config.get("no_rope_layers")
    if section is None:
        return [(i + 1) % every != 0 for i in range(layers)]
    if not isinstance(section, list) or len(section) < layers or not all(n in (0, 1) for n in section):
        raise CheckpointError(f"config.json: no_rope_layers: must be a list of {layers} zeros and ones, one per layer")
    return [bool(n) for n in section[:layers]]
