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


def _unread(said: Mapping[str, Any], codec: MimiSpec) -> tuple[str, ...]:
    """Prefixes of the codec's tensors for encoding, and of codebooks that frames do not use."""
    made = [f"{CODEC}{part}." for part in ("encoder", "encoder_transformer", "downsample")]
    for kind, used in (("semantic", codec.semantic), ("acoustic", codec.books - codec.semantic)):
        at = f"{CODEC}quantizer.{kind}_residual_vector_quantizer."
        made += [f"{at}input_proj.", *(f"{at}layers.{i}.codebook.initialized" for i in range(used))]
        made += [f"{at}layers.{i}." for i in range(used, _size(said, "num_quantizers", 32))]
    return tuple(made)


def _part(config: Config, key: str) -> Mapping[str, Any]:
    found = config.get(key)
    if not isinstance(found, dict):
        raise CheckpointError(f"config.json: {key}: missing")
    return found


def _depth(said: Mapping[str, Any], books: int, codes: int, end: int, outer: int) -> DepthSpec:
    hidden, heads = _size(said, "hidden_size", 1024), _size(said, "num_attention_heads", 8)
    kv, head_dim = _size(said, "num_key_value_heads", 2), _size(said, "head_dim", hidden // heads)
    for key, wanted in (("num_codebooks", books), ("vocab_size", codes), ("backbone_hidden_size", outer)):
        if said.get(key) not in (None, wanted):
            raise CheckpointError(f"config.json: depth_decoder_config: {key} must be {wanted}, not {said[key]!r:.40}")
    if heads % kv:
        raise CheckpointError(f"config.json: depth_decoder_config: {heads} heads do not share {kv} of keys and values")
    return DepthSpec(
        books=books, codes=codes, end=end, outer=outer, hidden=hidden, layers=_size(said, "num_hidden_layers", 4), heads=heads,
        kv_heads=kv, head_dim=head_dim, inner=_size(said, "intermediate_size", 8192), act=act(said, "hidden_act", "silu"),
        eps=real(said, "rms_norm_eps", default=1e-5), bias=flag(said, "attention_bias", False),
        rope=rope({"max_position_embeddings": 33, "rope_theta": 5e5, **said}, head_dim),
        inner_bias=flag(said, "mlp_bias", False), table=TABLE, root=DEPTH, head="depth_decoder.codebooks_head",
    )  # fmt: skip


def _mimi(said: Mapping[str, Any], books: int) -> MimiSpec:
    hidden, heads = _size(said, "hidden_size", 512), _size(said, "num_attention_heads", 8)
    kv, ratios = _size(said, "num_key_value_heads", 8), said.get("upsampling_ratios") or [8, 6, 5, 4]
    if said.get("model_type", "mimi") != "mimi":
        raise UnsupportedModelError(
            f"config.json: codec_config: model_type: only mimi is supported, not {said['model_type']!r:.40}"
        )
    for key, wanted in (
        ("pad_mode", "constant"), ("use_causal_conv", True), ("use_conv_shortcut", False), ("trim_right_ratio", 1),
        ("audio_channels", 1),
    ):  # fmt: skip
        if said.get(key, wanted) != wanted:
            raise UnsupportedModelError(
                f"config.json: codec_config: {key}: only {wanted!r} is supported, not {said[key]!r:.40}"
            )
    if not isinstance(ratios, list) or not all(type(n) is int and 0 < n < MOST for n in ratios):
        raise CheckpointError(
            f"config.json: codec_config: upsampling_ratios: must be a list of positive integers, not {ratios!r:.80}"
        )
    if hidden % heads or heads % kv or (said.get("head_dim") or hidden // heads) != hidden // heads:
        raise CheckpointError(f"config.json: codec_config: {heads} heads do not divide hidden_size ({hidden})")
    rate, stored = sampling_rate(said), _size(said, "num_quantizers", 32)
    coarse = -(-rate // _product(ratios))
    frames = said.get("frame_rate") or said.get("_frame_rate") or coarse / 2
    if isinstance(frames, bool) or not isinstance(frames, int | float) or frames <= 0:
        raise CheckpointError(f"config.json: codec_config: frame_rate: must be a positive number, not {frames!r:.80}")
    stride = round(coarse / frames)
    semantic = integer(said, "num_semantic_quantizers", low=1, high=MOST, default=1)
    if not semantic < books <= stored or stride < 1:
        raise CheckpointError(f"config.json: codec_config: {stored} codebooks are too few for {books} codes of a frame")
    return MimiSpec(
        books=books, semantic=semantic, codes=_size(said, "codebook_size", 2048),
        inner_codes=_size(said, "codebook_dim", _size(said, "vector_quantization_hidden_dimension", 256)), hidden=hidden,
        layers=_size(said, "num_hidden_layers", 8), heads=heads, kv_heads=kv, inner=_size(said, "intermediate_size", 2048),
        act=act(said, "hidden_act", "gelu"), eps=real(said, "norm_eps", default=1e-5),
        window=_size(said, "sliding_window", 250),
        rope=rope({"max_position_embeddings": 8000, "rope_theta": 1e4, **said}, hidden // heads),
        bias=flag(said, "attention_bias", False), stride=stride, groups=_size(said, "upsample_groups", 512),
        filters=_size(said, "num_filters", 64), ratios=tuple(ratios), blocks=_size(said, "num_residual_layers", 1),
        growth=_size(said, "dilation_growth_rate", 2), compress=_size(said, "compress", 2), taps=_size(said, "kernel_size", 7),
        last_taps=_size(said, "last_kernel_size", 3), block_taps=_size(said, "residual_kernel_size", 3), root=f"{ROOT}{CODEC}",
        most_frames=MOST,
    )  # fmt: skip


def sampling_rate(codec: Mapping[str, Any]) -> int:
    """Samples per second."""
    return integer(codec, "sampling_rate", 100, 768_000, default=24_000)


def _product(ratios: list[int]) -> int:
    made = 1
    for each in ratios:
        made *= each
    return made


def _size(said: Mapping[str, Any], key: str, default: int) -> int:
    return integer(said, key, high=MOST, default=default)
