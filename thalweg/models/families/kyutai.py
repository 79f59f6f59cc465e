"""Kyutai speech to text: codes of Mimi's encoder, whose embeddings are added to the tokens of a decoder, one frame per 80 ms"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import attention, decoder, eps, layer_count, mlp, pre_norms
from thalweg.models.families.towers.mimi import mimi
from thalweg.models.spec import Layer, MimiEncoderSpec, MimiSpec, ModelSpec, Names

CODEC, TABLE = "codec_model.", "embed_tokens.embed_tokens"
PROJECTIONS = ("q_proj.linear", "k_proj.linear", "v_proj.linear")
MOST = 1 << 24


def kyutai(config: Config) -> ModelSpec:
    if config.get("language_model_only"):
        raise UnsupportedModelError("--language-model-only: this model reads audio with each token; start it without")
    if flag(config, "tie_word_embeddings", False):
        raise UnsupportedModelError("config.json: tie_word_embeddings: only false is supported for this family")
    config = {
        "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "max_position_embeddings": 750,
        "vocab_size": 4001, **config, "rms_norm_eps": eps(config, default=1e-8),
    }  # fmt: skip
    wide = integer(config, "ffn_dim", high=MOST, default=11_264)
    if wide % 2:
        raise CheckpointError(f"config.json: ffn_dim: must be even, not {wide}: it counts gates and values")
    heads = attention(config, window=integer(config, "sliding_window", default=375), parts=PROJECTIONS, out="o_proj.linear")
    layer = Layer(heads, mlp(config, inner=wide // 2, fused="fc1", down="fc2"), pre_norms(config))
    encoder = _encoder(config)
    return decoder(
        config, [layer] * layer_count(config), embed=TABLE, table_rows=encoder.table_rows, audio=encoder, overlays_added=True,
        names=Names(skip=_unread(encoder.codec)),
    )  # fmt: skip


def first_tokens(config: Config) -> tuple[int, int]:
    """(token that prompts begin with, row of the embedding that the model reads there). They differ where `bos_token_id` is a
    row behind the vocabulary, as by default."""
    vocab, first = integer(config, "vocab_size", default=4001), integer(config, "bos_token_id", 0, MOST, default=48_000)
    return (first if first < vocab else integer(config, "pad_token_id", 0, vocab - 1, default=3)), first


def codec_config(config: Config) -> Mapping[str, Any]:
    found = config.get("codec_config")
    if not isinstance(found, dict):
        raise CheckpointError("config.json: codec_config: missing")
    return found


def _encoder(config: Config) -> MimiEncoderSpec:
    section, vocab = codec_config(config), integer(config, "vocab_size")
    books, rows = integer(config, "num_codebooks", 2, 1 << 10, default=32), integer(config, "codebook_vocab_size", default=2049)
    codec = mimi(section, books, f"model.{CODEC}")
    stored, total = integer(section, "num_quantizers", high=1 << 10, default=32), vocab + books * rows + 1
    if stored != books:
        raise CheckpointError(f"config.json: num_codebooks: must be num_quantizers of codec_config, {stored}, not {books}")
    if rows < codec.codes:
        raise CheckpointError(f"config.json: codebook_vocab_size: {rows} rows are too few for {codec.codes} codes")
    if integer(config, "audio_pad_token_id", 0, MOST, default=69_569) < vocab + (books - 1) * rows:
        raise UnsupportedModelError("config.json: audio_pad_token_id: must be no row of the vocabulary or of a code")
    token, first = first_tokens(config)
    if first >= total:
        raise CheckpointError(f"config.json: bos_token_id: {first} is no row of an embedding of {total} rows")
    return MimiEncoderSpec(
        codec=codec, table=f"model.{TABLE}.weight", table_rows=total, first=vocab, rows=rows,
        silent=integer(config, "audio_bos_token_id", 0, rows - 1, default=2048),
        begin=None if token == first else (first, token),
    )  # fmt: skip


def _unread(codec: MimiSpec) -> tuple[str, ...]:
    """Prefixes of the codec's tensors for decoding."""
    result = [f"{CODEC}{part}." for part in ("decoder", "decoder_transformer", "upsample")]
    for kind, books in (("semantic", codec.semantic), ("acoustic", codec.books - codec.semantic)):
        at = f"{CODEC}quantizer.{kind}_residual_vector_quantizer."
        result += [f"{at}output_proj.", *(f"{at}layers.{i}.codebook.initialized" for i in range(books))]
    return tuple(result)
