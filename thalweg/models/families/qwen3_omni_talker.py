"""The talker of Qwen3-Omni: a mixture of experts over frames of codes and the text of each position, a small decoder for the
codes of a frame, and convolutions for the samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.checkpoint.spelling import THINKER_WIDTH, THINKER_WORDS
from thalweg.checkpoint.talker import MOST, count_codes, part_of, stored_tokens, talker_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families import multimodal
from thalweg.models.families.common import act as activation
from thalweg.models.families.common import layer_count, mlp, rope
from thalweg.models.families.qwen3 import qwen3_moe
from thalweg.models.families.towers.common import act, outer_config
from thalweg.models.spec import Code2WavSpec, CodeRows, DepthSpec, Layer, ModelSpec, MoE, Names, PositionText

ROOT, PREDICTOR, CODEC = "talker.model.", "code_predictor.", "code2wav."
TABLE, SPOKEN, STATES = "text_embedding", "text_projection", "hidden_projection"
RENAMED = (
    ("talker.code_predictor.", f"{ROOT}{PREDICTOR}"), ("talker.text_projection.", f"{ROOT}{SPOKEN}."),
    ("talker.hidden_projection.", f"{ROOT}{STATES}."),
    (CODEC, f"{ROOT}{CODEC}"), ("thinker.model.embed_tokens.", f"{ROOT}{TABLE}."),
)  # fmt: skip
UNREAD = (
    "thinker.model.layers.", "thinker.model.norm.", "thinker.lm_head.", "thinker.audio_tower.", "thinker.visual.",
)  # fmt: skip
TOP_K, TOP_P = 50, 0.8
"""Of sampled codes after the first of a frame."""


def qwen3_omni_talker(config: Config) -> ModelSpec:
    around, part = outer_config(config), talker_config(config)
    end, prompt = stored_tokens(config)
    rows = CodeRows(stored=integer(config, "vocab_size"), codes=count_codes(config), end=end, prompt=prompt)
    spec = multimodal.with_axes(qwen3_moe(multimodal.one_axis(config)), config, mixed=True)
    inner = integer(config, "shared_expert_intermediate_size", high=MOST)
    layers = [_with_shared(layer, config, inner) for layer in spec.layers]
    assert len(layers) == layer_count(config)
    books, hidden = _size(part, "num_code_groups", 32), spec.hidden
    return replace(
        spec, vocab=rows.vocab, head_rows=rows.codes + 1, code_rows=rows, layers=tuple(layers), root=ROOT,
        embed="codec_embedding", head="talker.codec_head", tied=False,
        depth=_predictor(part_of(part, "code_predictor_config", "talker_config: "), books, hidden),
        voice=_code2wav(part_of(around, "code2wav_config"), books),
        spoken_text=PositionText(
            tokens=integer(config, THINKER_WORDS), width=_thinker_width(config, part), outer=hidden,
            inner=integer(config, "intermediate_size", high=MOST), act=activation(config),
            pad=integer(around, "tts_pad_token_id"), table=TABLE, text=SPOKEN, states=STATES,
        ),
        names=Names(replace=RENAMED, skip=UNREAD),
    )  # fmt: skip


def _with_shared(layer: Layer, config: Config, inner: int) -> Layer:
    if not isinstance(layer.ffn, MoE):
        raise UnsupportedModelError("config.json: talker_config: layers without experts are not supported")
    shared = mlp(config, inner=inner, name="shared_expert")
    return replace(layer, ffn=replace(layer.ffn, shared=shared, shared_gate="shared_expert_gate"))


def _thinker_width(config: Config, part: Mapping[str, Any]) -> int:
    width, section = integer(config, THINKER_WIDTH), _size(part, "thinker_hidden_size", 2048)
    if width != section:
        raise CheckpointError(f"config.json: talker_config: thinker_hidden_size: must be {width}, the thinker's, not {section}")
    return width


def _predictor(section: Mapping[str, Any], books: int, outer: int) -> DepthSpec:
    hidden, heads = _size(section, "hidden_size", 1024), _size(section, "num_attention_heads", 16)
    kv, head_dim = _size(section, "num_key_value_heads", 8), _size(section, "head_dim", 128)
    for key, wanted in (("num_code_groups", books), ("hidden_size", outer)):
        if section.get(key, wanted) != wanted:
            raise CheckpointError(f"config.json: code_predictor_config: {key}: must be {wanted}, not {section[key]!r:.40}")
    if heads % kv:
        raise CheckpointError(f"config.json: code_predictor_config: {heads} heads do not share {kv} of keys and values")
    if set(section.get("layer_types") or ["full_attention"]) != {"full_attention"}:
        raise UnsupportedModelError("config.json: code_predictor_config: layer_types: only full_attention is supported")
    return DepthSpec(
        books=books, codes=_size(section, "vocab_size", 2048), end=-1, outer=outer, hidden=hidden,
        layers=_size(section, "num_hidden_layers", 5), heads=heads, kv_heads=kv, head_dim=head_dim,
        inner=_size(section, "intermediate_size", 3072), act=act(section, "hidden_act", "silu"),
        eps=real(section, "rms_norm_eps", default=1e-6), bias=flag(section, "attention_bias", False), inner_bias=False,
        rope=rope({"max_position_embeddings": 32_768, "rope_theta": 1e4, **section}, head_dim),
        table=f"{PREDICTOR}model.codec_embedding.{{}}", root=f"{PREDICTOR}model.", head=f"{PREDICTOR}lm_head.{{}}",
        separate=True, projected=False, head_norms=True, top_k=TOP_K, top_p=TOP_P,
    )  # fmt: skip


def _code2wav(section: Mapping[str, Any], books: int) -> Code2WavSpec:
    hidden, heads = _size(section, "hidden_size", 1024), _size(section, "num_attention_heads", 16)
    kv = _size(section, "num_key_value_heads", 16)
    if hidden % heads or heads % kv or (section.get("head_dim") or hidden // heads) != hidden // heads:
        raise CheckpointError(f"config.json: code2wav_config: {heads} heads do not divide hidden_size ({hidden})")
    if (found := _size(section, "num_quantizers", 16)) != books:
        raise CheckpointError(f"config.json: code2wav_config: num_quantizers: must be {books}, not {found}")
    return Code2WavSpec(
        books=books, codes=_size(section, "codebook_size", 2048), hidden=hidden, layers=_size(section, "num_hidden_layers", 8),
        heads=heads, kv_heads=kv, inner=_size(section, "intermediate_size", 3072), act=act(section, "hidden_act", "silu"),
        eps=real(section, "rms_norm_eps", default=1e-5), window=_size(section, "sliding_window", 72),
        rope=rope({"max_position_embeddings": 8000, "rope_theta": 1e4, **section}, hidden // heads),
        bias=flag(section, "attention_bias", False), ratios=_sizes(section, "upsampling_ratios", [2, 2]),
        rates=_sizes(section, "upsample_rates", [8, 5, 4, 3]), channels=_size(section, "decoder_dim", 1536), most_frames=MOST,
        root=f"{ROOT}{CODEC}",
    )  # fmt: skip


def _sizes(section: Mapping[str, Any], key: str, default: list[int]) -> tuple[int, ...]:
    found = section.get(key) or default
    if not isinstance(found, list) or not all(type(n) is int and 0 < n < MOST for n in found):
        raise CheckpointError(f"config.json: code2wav_config: {key}: must be a list of positive integers, not {found!r:.80}")
    return tuple(found)


def _size(section: Mapping[str, Any], key: str, default: int) -> int:
    return integer(section, key, high=MOST, default=default)
