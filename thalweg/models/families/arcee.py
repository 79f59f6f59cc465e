"""Arcee AFM: Llama with an ungated squared-ReLU MLP."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag
from thalweg.models.families.common import UNGATED, act, attention, decoder, eps, layer_count, pre_norms, ungated_mlp
from thalweg.models.spec import Layer, ModelSpec


def arcee(config: Config) -> ModelSpec:
    config = {**config, "rms_norm_eps": eps(config, default=1e-5)}
    bias = flag(config, "attention_bias", False)
    inner = ungated_mlp(
        config, act=act(config, default="relu2", known=UNGATED), bias=flag(config, "mlp_bias", False), up="up_proj",
        down="down_proj",
    )  # fmt: skip
    return decoder(
        config, [Layer(attention(config, bias=bias, out_bias=bias), inner, pre_norms(config))] * layer_count(config)
    )  # fmt: skip
