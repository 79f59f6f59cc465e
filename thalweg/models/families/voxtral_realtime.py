"""Voxtral Realtime: a causal audio encoder whose vectors are added to the tokens of a Mistral decoder, one each 80 ms."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer, real, rope_parameters
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families import mistral
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import PREFIXES
from thalweg.models.families.towers.audio_encoders import audio_config
from thalweg.models.families.towers.common import act, outer_config, size
from thalweg.models.spec import MLP, CausalAudioSpec, DelayMLP, Layer, ModelSpec, Names, ProjectorSpec
from thalweg.models.spec.rope import rope_type
from thalweg.models.spec.vision import ProjectorLayer

DELAY = 6
"""Tokens, unless the file says otherwise."""
GROUP = 4
"""The same of states in one vector."""


def voxtral_realtime(config: Config) -> ModelSpec:
    around, text = outer_config(config), mistral.mistral(config)
    if config.get("language_model_only"):
        raise UnsupportedModelError("--language-model-only: this model reads audio with each token; start it without")
    delay = integer(around, "default_num_delay_tokens", low=0, high=1 << 10, default=DELAY)
    layers = tuple(_delay(layer, delay) for layer in text.layers)
    return replace(
        text, layers=layers, names=Names(replace=PREFIXES), overlays_added=True, audio=_encoder(config),
        tied=bool(around.get("tie_word_embeddings", True)),
    )  # fmt: skip


def _delay(layer: Layer, delay: int) -> Layer:
    assert isinstance(layer.ffn, MLP)
    return replace(layer, ffn=DelayMLP(mlp=layer.ffn, delay=delay))


def _encoder(config: Config) -> CausalAudioSpec:
    section, around = audio_config(config), outer_config(config)
    hidden, head_dim = (
        size(section, "hidden_size", 1280),
        size({**section, "head_dim": section.get("head_dim") or 64}, "head_dim", 64),
    )
    heads, group, text = size(section, "num_attention_heads", 32), size(around, "downsample_factor", GROUP), hidden_size(config)
    if size(section, "num_key_value_heads", heads) != heads:
        raise UnsupportedModelError("config.json: audio_config: num_key_value_heads: must be num_attention_heads")
    if size(around, "audio_length_per_tok", 2 * GROUP) != 2 * group:
        raise CheckpointError(f"config.json: audio_length_per_tok: must be twice downsample_factor, {2 * group}")
    rope = {k: v for k, v in rope_parameters(section).items() if k != "partial_rotary_factor" or v != 1}
    rope_type(rope, head_dim)
    name = "multi_modal_projector.linear_"
    return CausalAudioSpec(
        bins=size(section, "num_mel_bins", 128), hidden=hidden,
        layers=integer(section, "num_hidden_layers", high=1000, default=32),
        heads=heads, head_dim=head_dim, inner=size(section, "intermediate_size", 5120), act=act(section, "hidden_act", "silu"),
        eps=real(section, "rms_norm_eps", default=1e-5), window=size(section, "sliding_window", 750), rope=rope,
        projector=ProjectorSpec(
            root="model.", group=group,
            steps=(
                ProjectorLayer(f"{name}1", hidden * group, text, False, act(around, "projector_hidden_act", "gelu")),
                ProjectorLayer(f"{name}2", text, text, False),
            ),
        ),
    )  # fmt: skip
