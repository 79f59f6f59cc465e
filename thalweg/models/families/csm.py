"""CSM: Llama over frames of codes, a small decoder for the codes of a frame, and Mimi's decoder for the samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import rope
from thalweg.models.families.llama import llama
from thalweg.models.families.towers.common import act
from thalweg.models.spec import DepthSpec, MimiSpec, ModelSpec, Names, TextTable

ROOT, TABLE = "backbone_model.", "embed_tokens.embed_audio_tokens"
DEPTH, CODEC = "depth_decoder.model.", "codec_model."
MOST = 1 << 16


def csm(config: Config) -> ModelSpec:
    books, codes = integer(config, "num_codebooks", 2, 1 << 10, default=32), integer(config, "vocab_size", default=2051)
    if not flag(config, "tie_codebooks_embeddings", True):
        raise UnsupportedModelError("config.json: tie_codebooks_embeddings: only true is supported")
    end = integer(config, "codebook_eos_token_id", 0, codes - 1, default=0)
    base = llama(config)
    table = TextTable(
        tokens=integer(config, "text_vocab_size", high=1 << 24, default=128_256), hidden=base.hidden, name="embed_text_tokens"
    )
    codec = _mimi(_part(config, "codec_config"), books)
    return replace(
        base, root=ROOT, embed=TABLE, table_rows=books * codes, tied=False, voice=codec, spoken_text=table,
        depth=_depth(_part(config, "depth_decoder_config"), books, codes, end, base.hidden),
        names=Names(
            replace=((f"{DEPTH}embed_tokens.", f"{ROOT}{TABLE}."),), skip=_unread(_part(config, "codec_config"), codec)
        ),
    )  # fmt: skip


def _unread(section: Mapping[str, Any], codec: MimiSpec) -> tuple[str, ...]:
    """Prefixes of the codec's tensors for encoding, and of codebooks that frames do not use."""
    result = [f"{CODEC}{part}." for part in ("encoder", "encoder_transformer", "downsample")]
    for kind, used in (("semantic", codec.semantic), ("acoustic", codec.books - codec.semantic)):
        at = f"{CODEC}quantizer.{kind}_residual_vector_quantizer."
        result += [f"{at}input_proj.", *(f"{at}layers.{i}.codebook.initialized" for i in range(used))]
        result += [f"{at}layers.{i}." for i in range(used, _size(section, "num_quantizers", 32))]
    return tuple(result)


def _part(config: Config, key: str) -> Mapping[str, Any]:
    found = config.get(key)
    if not isinstance(found, dict):
        raise CheckpointError(f"config.json: {key}: missing")
    return found


def _depth(section: Mapping[str, Any], books: int, codes: int, end: int, outer: int) -> DepthSpec:
    hidden, heads = _size(section, "hidden_size", 1024), _size(section, "num_attention_heads", 8)
    kv, head_dim = _size(section, "num_key_value_heads", 2), _size(section, "head_dim", hidden // heads)
    for key, wanted in (("num_codebooks", books), ("vocab_size", codes), ("backbone_hidden_size", outer)):
        if section.get(key) not in (None, wanted):
            raise CheckpointError(f"config.json: depth_decoder_config: {key} must be {wanted}, not {section[key]!r:.40}")
    if heads % kv:
        raise CheckpointError(f"config.json: depth_decoder_config: {heads} heads do not share {kv} of keys and values")
    return DepthSpec(
        books=books, codes=codes, end=end, outer=outer, hidden=hidden, layers=_size(section, "num_hidden_layers", 4),
        heads=heads,
        kv_heads=kv, head_dim=head_dim, inner=_size(section, "intermediate_size", 8192), act=act(section, "hidden_act", "silu"),
        eps=real(section, "rms_norm_eps", default=1e-5), bias=flag(section, "attention_bias", False),
        rope=rope({"max_position_embeddings": 33, "rope_theta": 5e5, **section}, head_dim),
        inner_bias=flag(section, "mlp_bias", False), table=TABLE, root=DEPTH, head="depth_decoder.codebooks_head",
    )  # fmt: skip


def _mimi(section: Mapping[str, Any], books: int) -> MimiSpec:
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
        root=f"{ROOT}{CODEC}",
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
