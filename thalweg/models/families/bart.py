"""BART and its relatives mBART, PLBart, MVP, Blenderbot, Marian, Pegasus, M2M-100 and NLLB: a text encoder, and a decoder with
cross attention in every layer. They differ in positions, and in the place of norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import UNGATED, act, hidden_size
from thalweg.models.spec import (
    Attention,
    CrossAttention,
    Layer,
    LayerNorm,
    LearnedEmbedding,
    Mixer,
    ModelSpec,
    Names,
    Norms,
    TextEncoder,
    UngatedMLP,
)  # fmt: skip

EPS = 1e-5
MOST_LAYERS = 1000
Reader = Callable[[int], Mixer]
"""Number of a layer of the encoder -> its attention."""
FIRST = 2
"""The row of position 0, of learned positions and of those of M2M-100."""


def bart(config: Config) -> ModelSpec:
    return build(config, _learned_positions(config), pre=False, embed_norm=True)


def mbart(config: Config) -> ModelSpec:
    return build(config, _learned_positions(config), pre=True, embed_norm=True)


def plbart(config: Config) -> ModelSpec:
    return build(config, _learned_positions(config), pre=False, embed_norm=True, scale=True)


def mvp(config: Config) -> ModelSpec:
    if flag(config, "use_prompt", False):
        raise UnsupportedModelError("config.json: use_prompt: prompts of MVP are not implemented")
    return bart(config)


def blenderbot(config: Config) -> ModelSpec:
    return build(config, _learned_positions(config, first=0), pre=True)


def blenderbot_small(config: Config) -> ModelSpec:
    result = build(config, _learned_positions(config, first=0), pre=False, embed_norm=True)
    return replace(result, learned_after_norm=True)


def marian(config: Config) -> ModelSpec:
    if not flag(config, "share_encoder_decoder_embeddings", True):
        raise UnsupportedModelError(
            "config.json: share_encoder_decoder_embeddings: this version serves models with one vocabulary for both sides"
        )
    return build(config, _sine_positions(config), pre=False)


def pegasus(config: Config) -> ModelSpec:
    return build(config, _sine_positions(config), pre=True)


def m2m_100(config: Config) -> ModelSpec:
    """M2M-100 and NLLB (dense)."""
    rows, steps = _positions(config) + FIRST, hidden_size(config) // 2 - 1
    positions = LearnedEmbedding("embed_positions", rows, first=FIRST, sines=steps)
    return build(config, positions, pre=True, scale=True, logit_bias="")


def _learned_positions(config: Config, first: int = FIRST) -> LearnedEmbedding:
    return LearnedEmbedding("embed_positions", _positions(config) + first, first=first)


def _sine_positions(config: Config) -> LearnedEmbedding:
    return LearnedEmbedding("embed_positions", _positions(config), sines=hidden_size(config) // 2)


def _positions(config: Config) -> int:
    return integer(config, "max_position_embeddings", high=1 << 16)


def build(
    config: Config, positions: LearnedEmbedding, *, pre: bool, embed_norm: bool = False, scale: bool = False,
    logit_bias: str = "final_logits_bias", bias: bool = True, sources: int = 0, reader: Reader | None = None,
    root: str = "model.",
) -> ModelSpec:  # fmt: skip
    """pre: norms before each part, and one at the end. scale: default of `scale_embedding`. bias: of attention. sources: tokens
    of the longest source; 0 = as many as positions. reader: None = attention to the whole source."""
    hidden, sources = hidden_size(config), sources or _positions(config)
    if hidden % 2 and positions.sines:
        raise CheckpointError(f"config.json: d_model: sines and cosines need an even number, not {hidden}")
    layers = decoder_layers(config, pre, sources=sources, width=hidden, biased=bias)
    near = attention(config, "encoder_attention_heads", hidden, False, bias)
    encoder = tuple(
        Layer(
            near if reader is None else reader(i),
            feed_forward(config, "encoder_ffn_dim"),
            _norms(hidden, pre, "self_attn", "final"),
        )
        for i in range(integer(config, "encoder_layers", high=MOST_LAYERS))
    )
    ends: dict[str, Any] = {"norm": LayerNorm("layer_norm", hidden, EPS) if pre else None}
    if embed_norm:
        ends["embed_norm"] = LayerNorm("layernorm_embedding", hidden, EPS)
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=layers,
        numbers=tuple(i // 2 for i in range(len(layers))), norm=LayerNorm("decoder.layer_norm", hidden, EPS) if pre else None,
        embed_norm=LayerNorm("decoder.layernorm_embedding", hidden, EPS) if embed_norm else None,
        learned=(replace(positions, name=f"decoder.{positions.name}"),),
        text=TextEncoder(
            sources=sources, hidden=hidden, layers=encoder, **ends,
            learned=(positions,),
        ),
        tied=flag(config, "tie_word_embeddings", True), logit_bias=logit_bias,
        embed_scale=hidden**0.5 if flag(config, "scale_embedding", scale) else 1.0,
        layer="decoder.layers.{}.", embed="shared", names=Names(skip=_redundant_names(positions, root)),
        root=root,
    )  # fmt: skip


def decoder_layers(config: Config, pre: bool, *, width: int, biased: bool = True, **cross: Any) -> tuple[Layer, ...]:
    """The decoder's layers, two for each of the files. pre: as of `_build`. width: of a vector of the source. biased:
    attention has biases. cross: further fields of `CrossAttention`."""
    hidden = hidden_size(config)
    heads = _heads(config, "decoder_attention_heads", hidden)
    mixer = CrossAttention(heads=heads, head_dim=hidden // heads, varies=True, width=width, bias=biased, key_bias=True, **cross)
    own = Layer(attention(config, "decoder_attention_heads", hidden, True, biased), None, _norms(hidden, pre, "self_attn"))
    attends_source = Layer(mixer, feed_forward(config, "decoder_ffn_dim"), _norms(hidden, pre, "encoder_attn", "final"))
    return (own, attends_source) * integer(config, "decoder_layers", high=MOST_LAYERS)


def _redundant_names(positions: LearnedEmbedding, root: str) -> tuple[str, ...]:
    """Copies of the shared embedding, computed positions, and the version that old files have."""
    names = ["embed_tokens.", "version", *["embed_positions."] * bool(positions.sines)]
    return tuple(f"{root}{side}.{name}" for side in ("encoder", "decoder") for name in names)


def _norms(hidden: int, pre: bool, mixer: str, ffn: str = "") -> Norms:
    result = {"mixer": mixer, **({"ffn": ffn} if ffn else {})}
    return Norms(
        **{part if pre else f"{part}_sum": LayerNorm(f"{name}_layer_norm", hidden, EPS) for part, name in result.items()}
    )


def attention(config: Config, key: str, hidden: int, causal: bool, bias: bool = True, **more: Any) -> Attention:
    """key: of the number of heads. more: fields of `spec.Attention`."""
    heads = _heads(config, key, hidden)
    named = {"out": "out_proj", **more}
    return Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads, causal=causal, bias=bias, out_bias=bias, **named)


def _heads(config: Config, key: str, hidden: int) -> int:
    heads = integer(config, key, high=1 << 16)
    if hidden % heads:
        raise CheckpointError(f"config.json: d_model ({hidden}) must be a multiple of {key} ({heads})")
    return heads


def feed_forward(config: Config, key: str) -> UngatedMLP:
    """key: of its width."""
    inner = integer(config, key, high=1 << 24)
    return UngatedMLP(inner=inner, act=act(config, "activation_function", "gelu", UNGATED), bias=True, name="")
