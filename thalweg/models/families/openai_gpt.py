"""GPT, the first: GPT-2 with a norm after each addition, and none at the end."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.gpt import gpt2, layer_norm
from thalweg.models.spec import ModelSpec, Norms

ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}
"""`afn` -> the name that other families have for it."""


def openai_gpt(config: Config) -> ModelSpec:
    name = text(config, "afn", "gelu")
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(f"config.json: afn: unknown {name!r:.80}; supported: {', '.join(ACTIVATIONS)}")
    result = gpt2({**config, "activation_function": ACTIVATIONS[name], "n_inner": None})
    norms = Norms(mixer_sum=layer_norm(config, "ln_1"), ffn_sum=layer_norm(config, "ln_2"))
    return replace(
        result, layers=tuple(replace(layer, norms=norms) for layer in result.layers), norm=None, embed="tokens_embed",
        learned=tuple(replace(each, name="positions_embed") for each in result.learned),
    )  # fmt: skip
