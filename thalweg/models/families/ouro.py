"""Ouro: looped Llama layers with pre- and post-norms, one KV cache per loop, the final norm after each loop."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import attention, decoder, eps, hidden_size, layer_count, mlp
from thalweg.models.spec import Layer, ModelSpec, Names, Norm, Norms


def ouro(config: Config) -> ModelSpec:
    if flag(config, "use_sliding_window", False):
        raise UnsupportedModelError("config.json: use_sliding_window: this version serves Ouro without windows")
    config = {"rope_theta": 1e6, **config}
    hidden, e, count, turns = (
        hidden_size(config),
        eps(config),
        layer_count(config),
        integer(config, "total_ut_steps", 1, 64, default=4),
    )
    norms = Norms(*(Norm(name, hidden, e) for name in (
        "input_layernorm", "input_layernorm_2", "post_attention_layernorm", "post_attention_layernorm_2",
    )))  # fmt: skip
    layer = Layer(attention(config), mlp(config), norms)
    last = replace(layer, norms=replace(norms, ffn_sum=Norm("/model.norm", hidden, e)))
    turn = [*[layer] * (count - 1), last]
    return decoder(
        config, [*turn * (turns - 1), *[layer] * count], numbers=tuple(range(count)) * turns,
        names=Names(skip=("model.early_exit_gate.",)),
    )  # fmt: skip
