"""Moonshine Streaming: an encoder of frames of samples with windows, and Moonshine's decoder."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.mel import RATE
from thalweg.models.families.common import UNGATED, act, hidden_size, rope
from thalweg.models.families.moonshine import EPS, LONGEST, MOST_LAYERS, TOKENS
from thalweg.models.spec import (
    MLP,
    Attention,
    CrossAttention,
    FrameSource,
    Layer,
    LayerNorm,
    ModelSpec,
    Names,
    Norms,
)  # fmt: skip
from thalweg.models.spec.frame_source import count_sources

ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.8}
WINDOWS = ((16, 4), (16, 4), (16, 0), (16, 0), (16, 4), (16, 4))
"""Unless the file says otherwise."""


def moonshine_streaming(config: Config) -> ModelSpec:
    hidden, heads = hidden_size(config), integer(config, "num_attention_heads", high=1 << 16, default=8)
    if flag(config, "attention_bias", False):
        raise UnsupportedModelError("config.json: attention_bias: this version serves Moonshine without biases of attention")
    if config.get("num_key_value_heads") not in (None, heads):
        raise UnsupportedModelError("config.json: num_key_value_heads: grouped queries are not supported for Moonshine")
    head_dim = _head_size(config, hidden, heads, "")
    encoder = _encoder(config, hidden)
    turn = rope({"rope_parameters": ROPE, **config}, head_dim, partial=True, interleaved=True)
    own = Attention(heads=heads, kv_heads=heads, head_dim=head_dim, rope=turn)
    cross = CrossAttention(heads=heads, head_dim=head_dim, sources=encoder.sources, varies=True, width=hidden, out="o_proj")
    ffn = MLP(
        inner=integer(config, "intermediate_size", high=1 << 24), act=act(config, "hidden_act", "silu"), bias=True,
        fused="fc1", swapped=True, down="fc2",
    )  # fmt: skip
    layers = (
        Layer(own, None, Norms(mixer=_norm("input_layernorm", hidden))),
        Layer(cross, ffn, Norms(mixer=_norm("post_attention_layernorm", hidden), ffn=_norm("final_layernorm", hidden))),
    )
    count = integer(config, "num_hidden_layers", high=MOST_LAYERS)
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=layers * count,
        numbers=tuple(i // 2 for i in range(2 * count)), norm=_norm("decoder.norm", hidden), speech=encoder,
        tied=flag(config, "tie_word_embeddings", False), layer="decoder.layers.{}.", embed="decoder.embed_tokens",
        head="proj_out", names=Names(inside=((".gamma", ".weight"),)),
    )  # fmt: skip


def _encoder(config: Config, width: int) -> FrameSource:
    """width: of the decoder."""
    section = config.get("encoder_config")
    if not isinstance(section, dict):
        raise CheckpointError("config.json: encoder_config: missing")
    hidden, heads = _size(section, "hidden_size", 320), _size(section, "num_attention_heads", 8)
    if _size(section, "num_key_value_heads", heads) != heads:
        raise UnsupportedModelError("config.json: encoder_config: num_key_value_heads: must be num_attention_heads")
    if _size(section, "sample_rate", RATE) != RATE:
        raise UnsupportedModelError(f"config.json: encoder_config: sample_rate: only {RATE} is supported")
    frame = _frame(section.get("frame_ms", 5.0))
    rows = integer(config, "max_position_embeddings", high=1 << 16)
    longest = min(LONGEST, int(rows / TOKENS))
    while longest and count_sources(-(-longest * RATE // 100 // frame)) > rows:
        longest -= 1
    return FrameSource(
        sources=count_sources(-(-longest * RATE // 100 // frame)), hidden=hidden, layers=(), norm=_norm("", hidden),
        longest=longest, frame=frame, heads=heads, head_dim=_head_size(section, hidden, heads, "encoder_config: "),
        inner=_size(section, "intermediate_size", 1280), act=act(section, "hidden_act", "gelu", UNGATED),
        windows=_windows(section.get("sliding_windows", WINDOWS), _size(section, "num_hidden_layers", 6)),
        bias=flag(section, "attention_bias", False), rows=rows, projected=0 if hidden == width else width,
    )  # fmt: skip


def _frame(milliseconds: Any) -> int:
    """Samples."""
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool) or not 0.1 <= milliseconds <= 1000:
        raise CheckpointError(
            f"config.json: encoder_config: frame_ms: must be a number from 0.1 to 1000, not {milliseconds!r:.40}"
        )
    return round(RATE * float(milliseconds) / 1000)


def _windows(found: Any, count: int) -> tuple[tuple[int, int], ...]:
    pairs = [tuple(each) for each in found if isinstance(each, list | tuple)] if isinstance(found, list | tuple) else []
    if len(pairs) != count or not all(len(p) == 2 and all(type(n) is int and n >= 0 for n in p) and p[0] for p in pairs):
        raise CheckpointError(
            f"config.json: encoder_config: sliding_windows: must be a pair of numbers for each of {count} layers"
        )
    return tuple((one, other) for one, other in pairs)


def _head_size(section: Config, hidden: int, heads: int, where: str) -> int:
    if section.get("head_dim") is None and hidden % heads:
        raise CheckpointError(f"config.json: {where}hidden_size ({hidden}) must be a multiple of num_attention_heads ({heads})")
    return integer(section, "head_dim", high=1 << 16, default=hidden // heads)


def _size(section: Config, key: str, default: int) -> int:
    return integer(section, key, high=1 << 24, default=default)


def _norm(name: str, hidden: int) -> LayerNorm:
    return LayerNorm(name, hidden, EPS, bias=False)
