"""Granite Speech 5: a conformer within blocks of frames, with a CTC head."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.audio_processors.granite_speech5 import LONGEST, halved_layers
from thalweg.models.families.parakeet import blank_token, encoder_config
from thalweg.models.families.transcribers import transcriber
from thalweg.models.spec import BlockTranscriberSpec, CTCHead, ModelSpec, Names

FRAMES = 50
"""Pairs of spectra in a second."""


def granite_speech5(config: Config) -> ModelSpec:
    section = encoder_config(config)
    hidden, heads = _size(section, "hidden_size", 1024), _size(section, "num_attention_heads", 8)
    context, reach = _size(section, "context_size", 128), _size(section, "max_position_embeddings", 512)
    if context > reach:
        raise CheckpointError(
            f"config.json: encoder_config: context_size ({context}) exceeds max_position_embeddings ({reach})"
        )
    if section.get("hidden_act", "silu") != "silu" or section.get("num_key_value_heads") not in (None, heads):
        raise UnsupportedModelError("config.json: encoder_config: hidden_act: must be silu, num_key_value_heads the heads")
    kernel, layers = _size(section, "conv_kernel_size", 7), integer(section, "num_hidden_layers", high=1000, default=16)
    if not kernel % 2:
        raise UnsupportedModelError(f"config.json: encoder_config: conv_kernel_size ({kernel}) must be odd")
    labels, halved = integer(config, "vocab_size", high=1 << 24, default=16_384), halved_layers(section)
    if any(i >= layers for i in halved):
        raise CheckpointError(f"config.json: encoder_config: subsample_layers: must be below {layers}")
    head = CTCHead(labels=labels, blank=blank_token({"pad_token_id": 0, **config}, "pad_token_id", labels), name="encoder.out")
    head_dim = {k: v for k, v in section.items() if v is not None}
    encoder = BlockTranscriberSpec(
        inputs=4 * _size(section, "num_mel_bins", 80), hidden=hidden, layers=layers, heads=heads,
        head_dim=_size(head_dim, "head_dim", hidden // heads), inner=_size(section, "intermediate_size", 4096),
        bias=flag(section, "attention_bias", True), context=context, reach=reach, kernel=kernel,
        channels=hidden * _size(section, "conv_expansion_factor", 2), halved=halved,
        frames=int(LONGEST * FRAMES) // 2 ** len(halved) + 1, head=head,
    )  # fmt: skip
    counters = tuple(f"encoder.layers.{i}.conv.norm.num_batches_tracked" for i in range(layers))
    return transcriber(encoder, encoder.frames, Names(skip=("ctc_head.", *counters)))


def _size(section: Config, key: str, default: int) -> int:
    return integer(section, key, high=1 << 24, default=default)
