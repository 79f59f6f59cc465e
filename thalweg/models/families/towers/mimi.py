"""The codec Mimi, as models that speak and models that transcribe have it in `codec_config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.checkpoint.config import flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import rope
from thalweg.models.families.towers.common import act
from thalweg.models.spec import MimiSpec

MOST = 1 << 16


def mimi(section: Mapping[str, Any], books: int, root: str) -> MimiSpec:
    """section: `codec_config`. books: codes of a frame. root: prefix of the codec's tensors. CheckpointError,
    UnsupportedModelError."""
    hidden, heads = _size(section, "hidden_size", 512), _size(section, "num_attention_heads", 8)
    kv, ratios = _size(section, "num_key_value_heads", 8), section.get("upsampling_ratios") or [8, 6, 5, 4]
    if section.get("model_type", "mimi") != "mimi":
        raise UnsupportedModelError(
            f"config.json: codec_config: model_type: only mimi is supported, not {section['model_type']!r:.40}"
        )
    for key, wanted in (
        ("pad_mode", "constant"), ("use_causal_conv", True), ("use_conv_shortcut", False), ("trim_right_ratio", 1),
        ("audio_channels", 1),
    ):  # fmt: skip
        if section.get(key, wanted) != wanted:
            raise UnsupportedModelError(
                f"config.json: codec_config: {key}: only {wanted!r} is supported, not {section[key]!r:.40}"
            )
    if not isinstance(ratios, list) or not all(type(n) is int and 0 < n < MOST for n in ratios):
        raise CheckpointError(
            f"config.json: codec_config: upsampling_ratios: must be a list of positive integers, not {ratios!r:.80}"
        )
    if hidden % heads or heads % kv or (section.get("head_dim") or hidden // heads) != hidden // heads:
        raise CheckpointError(f"config.json: codec_config: {heads} heads do not divide hidden_size ({hidden})")
    rate, stored = sampling_rate(section), _size(section, "num_quantizers", 32)
    coarse = -(-rate // _product(ratios))
    frames = section.get("frame_rate") or section.get("_frame_rate") or coarse / 2
    if isinstance(frames, bool) or not isinstance(frames, int | float) or frames <= 0:
        raise CheckpointError(f"config.json: codec_config: frame_rate: must be a positive number, not {frames!r:.80}")
    stride = round(coarse / frames)
    semantic = integer(section, "num_semantic_quantizers", low=1, high=MOST, default=1)
    if not semantic < books <= stored or stride < 1:
        raise CheckpointError(f"config.json: codec_config: {stored} codebooks are too few for {books} codes of a frame")
    return MimiSpec(
        books=books, semantic=semantic, codes=_size(section, "codebook_size", 2048),
        inner_codes=_size(section, "codebook_dim", _size(section, "vector_quantization_hidden_dimension", 256)), hidden=hidden,
        layers=_size(section, "num_hidden_layers", 8), heads=heads, kv_heads=kv,
        inner=_size(section, "intermediate_size", 2048),
        act=act(section, "hidden_act", "gelu"), eps=real(section, "norm_eps", default=1e-5),
        window=_size(section, "sliding_window", 250),
        rope=rope({"max_position_embeddings": 8000, "rope_theta": 1e4, **section}, hidden // heads),
        bias=flag(section, "attention_bias", False), stride=stride, groups=_size(section, "upsample_groups", 512),
        filters=_size(section, "num_filters", 64), ratios=tuple(ratios), blocks=_size(section, "num_residual_layers", 1),
        growth=_size(section, "dilation_growth_rate", 2), compress=_size(section, "compress", 2),
        taps=_size(section, "kernel_size", 7),
        last_taps=_size(section, "last_kernel_size", 3), block_taps=_size(section, "residual_kernel_size", 3),
        root=root,
        most_frames=MOST,
    )  # fmt: skip


def sampling_rate(codec: Mapping[str, Any]) -> int:
    """Samples per second."""
    return integer(codec, "sampling_rate", 100, 768_000, default=24_000)


def _product(ratios: list[int]) -> int:
    result = 1
    for each in ratios:
        result *= each
    return result


def _size(section: Mapping[str, Any], key: str, default: int) -> int:
    return integer(section, key, high=MOST, default=default)
