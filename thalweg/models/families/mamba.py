"""Mamba and FalconMamba: selective scans without attention or MLPs, with inner norms in FalconMamba."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError
from thalweg.models.families.common import act, decoder, hidden_size, layer_count
from thalweg.models.spec import Layer, Mamba, Mixer, ModelSpec, Names, Norm, Norms

SILU = {"silu": "silu", "swish": "silu"}
"""Activations after the convolutions of recurrent layers."""


def mamba(config: Config) -> ModelSpec:
    return backbone(config, _scan(config))


def falcon_mamba(config: Config) -> ModelSpec:
    return backbone(config, _scan(config, norms=("", "", ""), eps=real(config, "mixer_rms_eps", 0, 1, default=1e-6)))


def backbone(config: Config, mixer: Mixer, tied: bool = True) -> ModelSpec:
    """Layers of this mixer only, by Mamba's names. tied: the default of the key."""
    hidden, e = hidden_size(config), real(config, "layer_norm_epsilon", default=1e-5)
    layer = Layer(mixer, None, Norms(mixer=Norm("norm", hidden, e)))
    return decoder(
        config, [layer] * layer_count(config), norm=Norm("norm_f", hidden, e), root="backbone.", embed="embeddings",
        names=Names(replace=(("backbone.embedding.", "backbone.embeddings."),)),
        tied=flag(config, "tie_word_embeddings", tied),
    )  # fmt: skip


def _scan(config: Config, **more: Any) -> Mamba:
    hidden = hidden_size(config)
    return Mamba(
        inner=integer(config, "intermediate_size", default=inner_size(config, "expand")),
        state=integer(config, "state_size", default=16), rank=step_rank(config, "time_step_rank", hidden),
        kernel=taps(config, "conv_kernel"), act=act(config, known=SILU), bias=flag(config, "use_bias", False),
        conv_bias=flag(config, "use_conv_bias", True), **more,
    )  # fmt: skip


def inner_size(config: Config, key: str) -> int:
    """Channels: so many times the hidden size."""
    return int(real(config, key, 1e-3, 1e3, default=2.0) * hidden_size(config))


def step_rank(config: Config, key: str, hidden: int) -> int:
    """Values that a step is projected through. "auto": a sixteenth of the hidden size, rounded up."""
    absent = -(-hidden // 16)
    return absent if config.get(key) == "auto" else integer(config, key, high=1 << 20, default=absent)


def taps(config: Config, key: str, default: int = 4) -> int:
    found = integer(config, key, high=64, default=default)
    if found < 2:
        raise CheckpointError(f"config.json: {key}: must be between 2 and 64, not {found}")
    return found
