"""Parakeet: FastConformer, and a head that transcribes: CTC, or a transducer with or without durations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.audio_processors.parakeet import LONGEST
from thalweg.media.mel import HOP, RATE
from thalweg.models.families.towers.common import act
from thalweg.models.families.transcribers import transcriber
from thalweg.models.spec import CTCHead, FastConformerSpec, ModelSpec, Names, TranscriptHead, TransducerHead


def parakeet_ctc(config: Config) -> ModelSpec:
    labels = integer(config, "vocab_size", high=1 << 24)
    head = CTCHead(labels=labels, blank=blank_token(config, "pad_token_id", labels), name="ctc_head", pointwise=True)
    return _transcriber(config, head)


def parakeet_rnnt(config: Config) -> ModelSpec:
    return _transcriber(config, build_transducer(config, ()))


def parakeet_tdt(config: Config) -> ModelSpec:
    steps = config.get("durations", [0, 1, 2, 3, 4])
    if not isinstance(steps, list) or not steps or not all(type(n) is int and 0 <= n < 1 << 8 for n in steps) or not any(steps):
        raise CheckpointError(f"config.json: durations: must be a list of numbers of frames, not {steps!r:.80}")
    return _transcriber(config, build_transducer(config, tuple(steps)))


def build_transducer(config: Config, durations: tuple[int, ...]) -> TransducerHead:
    """durations: () for predictions of tokens only."""
    labels = integer(config, "vocab_size", high=1 << 24)
    return TransducerHead(
        labels=labels, blank=blank_token(config, "blank_token_id", labels),
        hidden=integer(config, "decoder_hidden_size", high=1 << 20, default=640),
        layers=integer(config, "num_decoder_layers", high=100, default=2), act=act(config, "hidden_act", "relu"),
        durations=durations, most=integer(config, "max_symbols_per_step", high=1 << 10, default=10),
    )  # fmt: skip


def blank_token(config: Config, key: str, labels: int) -> int:
    """CheckpointError if it is no label. Default: the last."""
    return integer(config, key, low=0, high=labels - 1, default=labels - 1)


def _transcriber(config: Config, head: TranscriptHead) -> ModelSpec:
    encoder = check_bins(fastconformer(encoder_config(config), LONGEST, head))
    counters = tuple(f"{encoder.root}layers.{i}.conv.norm.num_batches_tracked" for i in range(encoder.layers))
    return transcriber(encoder, encoder.frames * head.per_frame, Names(skip=counters))


def encoder_config(config: Config) -> dict[str, Any]:
    found = config.get("encoder_config")
    if not isinstance(found, dict):
        raise CheckpointError("config.json: encoder_config: missing")
    return found


def fastconformer(section: Mapping[str, Any], seconds: float, head: TranscriptHead | None) -> FastConformerSpec:
    """seconds: of the longest clip."""
    hidden, heads = _size(section, "hidden_size", 1024), _size(section, "num_attention_heads", 8)
    stride, factor = _size(section, "subsampling_conv_stride", 2), _size(section, "subsampling_factor", 8)
    halvings = next((n for n in range(1, 9) if stride**n == factor), 0)
    taps, kernel = _size(section, "subsampling_conv_kernel_size", 3), _size(section, "conv_kernel_size", 9)
    if hidden % heads or hidden % 2:
        raise CheckpointError(
            f"config.json: encoder_config: hidden_size ({hidden}) must be even, and a multiple of num_attention_heads ({heads})"
        )
    if not halvings or stride < 2:
        raise UnsupportedModelError(
            f"config.json: encoder_config: subsampling_factor ({factor}) must be a power of subsampling_conv_stride ({stride})"
        )
    if not taps % 2 or not kernel % 2:
        raise UnsupportedModelError("config.json: encoder_config: kernel sizes must be odd numbers")
    return FastConformerSpec(
        bins=_size(section, "num_mel_bins", 80), hidden=hidden, layers=_size(section, "num_hidden_layers", 24), heads=heads,
        inner=_size(section, "intermediate_size", 4096), act=act(section, "hidden_act", "silu"),
        bias=flag(section, "attention_bias", True), kernel=kernel, conv_bias=flag(section, "convolution_bias", True),
        channels=_size(section, "subsampling_conv_channels", 256), taps=taps, stride=stride, halvings=halvings,
        scale=hidden**0.5 if flag(section, "scale_input", True) else 1.0, head=head,
        frames=int(seconds * RATE) // HOP // factor + 1,
    )  # fmt: skip


def check_bins(result: FastConformerSpec) -> FastConformerSpec:
    factor = result.stride**result.halvings
    if result.bins % factor:
        raise UnsupportedModelError(f"config.json: encoder_config: num_mel_bins ({result.bins}) must be a multiple of {factor}")
    return result


def _size(section: Mapping[str, Any], key: str, default: int) -> int:
    return integer(section, key, high=1 << 24, default=default)
