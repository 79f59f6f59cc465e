"""VITS and MMS-TTS: text to speech without a decoder. One network computes all samples of a text."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.towers.common import act
from thalweg.models.spec import ModelSpec, Names, VitsSpec, VocoderSpec
from thalweg.models.spec.vits import unused_names
from thalweg.models.tail import Pooling

LONGEST = 120.0
"""Seconds of the longest result."""
OLD_NAMES = ((".weight_g", ".parametrizations.weight.original0"), (".weight_v", ".parametrizations.weight.original1"))
MOST = 1 << 16


def vits(config: Config) -> ModelSpec:
    vocab, speakers = integer(config, "vocab_size", high=1 << 24, default=38), _size(config, "num_speakers", 1)
    stored = integer(config, "speaker_embedding_size", low=0, high=MOST, default=0)
    hidden, heads = _size(config, "hidden_size", 192), _size(config, "num_attention_heads", 2)
    flow, kernel = _size(config, "flow_size", 192), _size(config, "wavenet_kernel_size", 5)
    if hidden % heads:
        raise CheckpointError(f"config.json: hidden_size ({hidden}) must be a multiple of num_attention_heads ({heads})")
    if flow % 2 or not kernel % 2:
        raise UnsupportedModelError("config.json: flow_size must be even, and wavenet_kernel_size odd")
    if (channels := config.get("depth_separable_channels")) not in (None, 2):
        raise UnsupportedModelError(f"config.json: depth_separable_channels: only 2 is supported, not {channels!r:.40}")
    vocoder, rate = _vocoder(config, flow), real(config, "sampling_rate", 1000, 768_000, default=16_000)
    result = VitsSpec(
        vocab=vocab, hidden=hidden, layers=_size(config, "num_hidden_layers", 6), heads=heads,
        window=_size(config, "window_size", 4), bias=flag(config, "use_bias", True), inner=_size(config, "ffn_dim", 768),
        inner_kernel=_size(config, "ffn_kernel_size", 3), act=act(config, "hidden_act", "relu"),
        eps=real(config, "layer_norm_eps", default=1e-5), flow=flow, flows=_size(config, "prior_encoder_num_flows", 4),
        flow_layers=_size(config, "prior_encoder_num_wavenet_layers", 4), flow_kernel=kernel,
        flow_dilation=_size(config, "wavenet_dilation_rate", 1),
        stochastic=flag(config, "use_stochastic_duration_prediction", True),
        duration_kernel=_size(config, "duration_predictor_kernel_size", 3),
        duration_filters=_size(config, "duration_predictor_filter_channels", 256),
        duration_flows=_size(config, "duration_predictor_num_flows", 4),
        duration_bins=_size(config, "duration_predictor_flow_bins", 10),
        duration_bound=real(config, "duration_predictor_tail_bound", 1e-3, 1e3, default=5.0),
        duration_layers=_size(config, "depth_separable_num_layers", 3), speakers=speakers,
        condition=stored if speakers > 1 else 0, vocoder=vocoder, pace=real(config, "speaking_rate", 1e-2, 1e2, default=1.0),
        noise=real(config, "noise_scale", 0, 1e2, default=0.667),
        duration_noise=real(config, "noise_scale_duration", 0, 1e2, default=0.8),
        most_frames=int(LONGEST * rate) // vocoder.hop,
    )  # fmt: skip
    if not result.duration_kernel % 2 or result.duration_bins >= 1000:
        raise UnsupportedModelError("config.json: duration_predictor_kernel_size must be odd, and ..._flow_bins below 1000")
    if speakers > 1 and not stored:
        raise CheckpointError(f"config.json: speaker_embedding_size: {speakers} speakers need vectors; it is 0")
    return ModelSpec(
        vocab=vocab, hidden=1, layers=(), norm=None, root="", embed="", voice=result,
        names=Names(skip=tuple(unused_names(result, stored > 0)), inside=OLD_NAMES),
        pooling=Pooling("last", activate=False, speaks=True),
    )  # fmt: skip


def _vocoder(config: Config, flow: int) -> VocoderSpec:
    rates, kernels = _sizes(config, "upsample_rates", (8, 8, 2, 2)), _sizes(config, "upsample_kernel_sizes", (16, 16, 4, 4))
    blocks = _sizes(config, "resblock_kernel_sizes", (3, 7, 11))
    section: Any = config.get("resblock_dilation_sizes") or [[1, 3, 5]] * 3
    if not isinstance(section, list) or len(section) != len(blocks) or len(rates) != len(kernels):
        raise CheckpointError(
            "config.json: upsample_rates and upsample_kernel_sizes, resblock_kernel_sizes and resblock_dilation_sizes: must be "
            "lists of equal length"
        )
    steps = tuple(_sizes({"resblock_dilation_sizes": each}, "resblock_dilation_sizes", ()) for each in section)
    channels = _size(config, "upsample_initial_channel", 512)
    if channels % (1 << len(rates)):
        raise CheckpointError(f"config.json: upsample_initial_channel ({channels}) must be divisible by 2**{len(rates)}")
    if any((k - r) % 2 or k < r for k, r in zip(kernels, rates, strict=True)) or not all(k % 2 for k in blocks):
        raise UnsupportedModelError(
            "config.json: upsample_kernel_sizes must exceed upsample_rates by even numbers, and resblock_kernel_sizes be odd"
        )
    return VocoderSpec(
        inputs=flow, channels=channels, rates=rates, kernels=kernels, block_kernels=blocks, dilations=steps,
        slope=real(config, "leaky_relu_slope", 0, 1, default=0.1),
    )  # fmt: skip


def _size(config: Config, key: str, default: int) -> int:
    return integer(config, key, high=MOST, default=default)


def _sizes(config: Config, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
    found = config.get(key) or list(default)
    if not isinstance(found, list) or not found or not all(type(n) is int and 0 < n < MOST for n in found):
        raise CheckpointError(f"config.json: {key}: must be a list of positive integers, not {found!r:.80}")
    return tuple(found)
