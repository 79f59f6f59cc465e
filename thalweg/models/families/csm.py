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
from thalweg.models.families.towers.mimi import MOST, mimi
from thalweg.models.spec import DepthSpec, MimiSpec, ModelSpec, Names, TextTable

ROOT, TABLE = "backbone_model.", "embed_tokens.embed_audio_tokens"
DEPTH, CODEC = "depth_decoder.model.", "codec_model."


def csm(config: Config) -> ModelSpec:
    books, codes = integer(config, "num_codebooks", 2, 1 << 10, default=32), integer(config, "vocab_size", default=2051)
    if not flag(config, "tie_codebooks_embeddings", True):
        raise UnsupportedModelError("config.json: tie_codebooks_embeddings: only true is supported")
    end = integer(config, "codebook_eos_token_id", 0, codes - 1, default=0)
    base = llama(config)
    table = TextTable(
        tokens=integer(config, "text_vocab_size", high=1 << 24, default=128_256), hidden=base.hidden, name="embed_text_tokens"
    )
    codec = mimi(_part(config, "codec_config"), books, f"{ROOT}{CODEC}")
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


def _size(section: Mapping[str, Any], key: str, default: int) -> int:
    return integer(section, key, high=MOST, default=default)
