"""Fun-ASR-Nano: SenseVoice's encoder of stacked spectra, layers that adapt its states, and Qwen3."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError
from thalweg.models.families import multimodal
from thalweg.models.families.audio_chat import ENCODER
from thalweg.models.families.common import UNGATED, act, hidden_size
from thalweg.models.families.towers.common import outer_config
from thalweg.models.spec import MemoryEncoderSpec, MemoryLayer, ModelSpec, Names

EPS = 1e-5


def fun_asr_nano(config: Config) -> ModelSpec:
    """Its embedding is also the output matrix, unless the outer configuration says otherwise."""
    around = outer_config(config)
    spec = multimodal.of_kind({**config, "tie_word_embeddings": flag(around, "tie_word_embeddings", True)}, "qwen3")
    if config.get("language_model_only"):
        skip = tuple(root + part for root in ("", "model.") for part in ENCODER)
        return replace(spec, names=Names(replace=multimodal.PREFIXES, skip=skip))
    return replace(spec, names=Names(replace=multimodal.PREFIXES), audio=_encoder(around, hidden_size(config)))


def _encoder(around: Config, text: int) -> MemoryEncoderSpec:
    heard, adapted = _part(around, "audio_config"), _part(around, "adaptor_config")
    layer = _layer(heard, "audio_config", 512, 4, 2048)
    layer = replace(layer, taps=_size(heard, "fsmn_kernel_size", 11))
    inputs = _size(heard, "num_mel_bins", 80) * _size(heard, "num_stacked_frames", 7)
    if inputs % 2:
        raise CheckpointError(f"config.json: audio_config: {inputs} values of a frame must be an even number")
    count = _size(heard, "num_hidden_layers", 70)
    last = integer(heard, "num_timestamp_prediction_layers", low=0, high=count, default=20)
    ends = (count - last - 1, count - 1)
    encoder = tuple(replace(layer, inputs=layer.hidden if i else inputs, normed=i in ends) for i in range(count))
    adaptor = _layer(adapted, "adaptor_config", 1024, 8, 256)
    if adaptor.hidden != text:
        raise CheckpointError(f"config.json: adaptor_config: hidden_size must be that of text_config, {text}")
    return MemoryEncoderSpec(
        encoder=encoder, adaptor=(adaptor,) * integer(adapted, "num_hidden_layers", low=0, high=1000, default=2),
        inner=_size(adapted, "projector_hidden_size", 2048), act=act(adapted, "projector_hidden_act", "relu", UNGATED),
    )  # fmt: skip


def _layer(section: Config, where: str, hidden: int, heads: int, inner: int) -> MemoryLayer:
    """hidden, heads, inner: defaults."""
    hidden, heads = _size(section, "hidden_size", hidden), _size(section, "num_attention_heads", heads)
    if hidden % heads:
        raise CheckpointError(
            f"config.json: {where}: hidden_size ({hidden}) must be a multiple of num_attention_heads ({heads})"
        )
    return MemoryLayer(
        inputs=hidden, hidden=hidden, heads=heads, inner=_size(section, "intermediate_size", inner),
        act=act(section, "hidden_act", "relu", UNGATED), eps=real(section, "layer_norm_eps", default=EPS),
    )  # fmt: skip


def _part(around: Config, key: str) -> dict[str, Any]:
    found = around.get(key, {})
    if not isinstance(found, dict):
        raise CheckpointError(f"config.json: {key}: must be an object")
    return found


def _size(section: Config, key: str, default: int) -> int:
    return integer(section, key, high=1 << 20, default=default)
