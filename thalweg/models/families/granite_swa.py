"""Granite with windows and sinks, dense and MoE: Granite's multipliers, a learned logit per head in the softmax, RoPE or none
by layer."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.common import head_size, layer_count, layer_types, rope
from thalweg.models.families.granite import granite, granite_moe_shared
from thalweg.models.spec import Attention, ModelSpec, Rope


def granite_swa(config: Config) -> ModelSpec:
    return _with_windows(granite({"tie_word_embeddings": True, "rms_norm_eps": 1e-5, **config}), config)


def granite_moe_swa(config: Config) -> ModelSpec:
    result = granite_moe_shared(config)
    names = replace(result.names, inside=(*result.names.inside, (".router.weight", ".router.layer.weight")))
    return _with_windows(replace(result, names=names), config)


def _with_windows(result: ModelSpec, config: Config) -> ModelSpec:
    count = layer_count(config)
    absent = ["full_attention" if i % 4 == 0 else "sliding_attention" for i in range(count)]
    window, types = integer(config, "sliding_window", default=128), layer_types(config, absent)
    thetas = config.get("layer_rope_theta")
    if thetas is not None and (
        not isinstance(thetas, list) or len(thetas) != count or not all(isinstance(t, int | float) and t >= 0 for t in thetas)
    ):
        raise CheckpointError(f"config.json: layer_rope_theta: must be a list of {count} numbers from 0, one per layer")
    layers = []
    for i, kind in enumerate(types):
        layer, heads = result.layers[i], result.layers[i].mixer
        assert isinstance(heads, Attention)
        if thetas is not None:
            heads = replace(heads, rope=_rope(config, float(thetas[i])) if thetas[i] else None)
        heads = replace(heads, sinks="sinks", window=window if kind == "sliding_attention" else 0)
        layers.append(replace(layer, mixer=heads))
    return replace(result, layers=tuple(layers))


def _rope(config: Config, theta: float) -> Rope:
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    section = config.get(key)
    return rope(
        {**config, "rope_theta": theta, key: {**(section if isinstance(section, dict) else {}), "rope_theta": theta}},
        head_size(config),
    )
