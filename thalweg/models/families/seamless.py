"""SeamlessM4T, both versions: text to text with two stacks as of NLLB, and speech to text with the encoder of w2v-BERT. The
networks for speech output are not read."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.bart import MOST_LAYERS, attention
from thalweg.models.families.common import UNGATED, act, hidden_size
from thalweg.models.families.conformer_ctc import INSIDE, PLACES
from thalweg.models.spec import (
    ConformerLayer,
    CrossAttention,
    FrameProjection,
    Layer,
    LayerNorm,
    LearnedEmbedding,
    ModelSpec,
    Names,
    Norms,
    PooledSource,
    PoolingAdapter,
    TextEncoder,
    UngatedMLP,
)  # fmt: skip

EPS = 1e-5
LONGEST = 3000
"""Hundredths of a second of a clip."""
PAIR = 2
"""Spectra of a frame."""
SPEAKERS = ("t2u_model.", "vocoder.")
TABLES = tuple(f"{side}.{name}." for side in ("text_encoder", "text_decoder") for name in ("embed_tokens", "embed_positions"))
"""Copies of the shared embedding, and computed positions."""
RENAMED = "norm_self_att"
"""The norm before self-attention, as `INSIDE` names it in every layer."""


def text_to_text(config: Config) -> ModelSpec:
    hidden = hidden_size(config)
    norms = Norms(mixer=_norm("self_attn_layer_norm", hidden), ffn=_norm("ffn_layer_norm", hidden))
    layer = Layer(attention(config, "encoder_attention_heads", hidden, False), _feed_forward(config, "encoder_ffn_dim"), norms)
    encoder = TextEncoder(
        sources=_positions(config), hidden=hidden, norm=_norm("layer_norm", hidden), name="text_encoder.",
        layers=(layer,) * integer(config, "encoder_layers", high=MOST_LAYERS), learned=(_places(config, "embed_positions"),),
    )  # fmt: skip
    names = Names(skip=(*SPEAKERS, *TABLES, "speech_encoder."))
    return _build(config, encoder.sources, "self_attn_layer_norm", names, text=encoder)


def speech_to_text(config: Config) -> ModelSpec:
    layer = _conformer(config, "relative", conv_norm="batch")
    return _speech_to_text(config, layer)


def speech_to_text_v2(config: Config) -> ModelSpec:
    reach = tuple(
        integer(config, f"{side}_max_position_embeddings", low=0, high=1 << 16, default=default)
        for side, default in (("left", 64), ("right", 8))
    )
    chunk, before = config.get("speech_encoder_chunk_size", 20_000), config.get("speech_encoder_left_chunk_num", 128)
    if not (chunk is None or (type(chunk) is int and chunk > 0)) or type(before) is not int:
        raise CheckpointError("config.json: speech_encoder_chunk_size and speech_encoder_left_chunk_num must be whole numbers")
    more = {"chunk": chunk or 0, "chunks": before if before >= 0 else LONGEST}
    return _speech_to_text(config, _conformer(config, "relative_key", reach=reach, causal=True, conv_norm="layer", **more))


def _speech_to_text(config: Config, layer: ConformerLayer) -> ModelSpec:
    hidden = hidden_size(config)
    inputs = integer(config, "feature_projection_input_dim", high=1 << 16, default=160)
    adapter = _adapter(config, layer) if flag(config, "add_adapter", True) else None
    sources = LONGEST // PAIR
    for _ in range(adapter.layers if adapter is not None else 0):
        assert adapter is not None
        sources = (sources + adapter.stride // 2 * 2 - adapter.taps) // adapter.stride + 1
    encoder = PooledSource(
        bins=inputs, sources=sources, hidden=hidden, layers=(), norm=_norm("", hidden), longest=LONGEST, conformer=layer,
        entrance=FrameProjection(inputs=inputs, hidden=hidden, eps=layer.eps), adapter=adapter, name="speech_encoder.",
        depth=integer(config, "speech_encoder_layers", high=MOST_LAYERS),
    )  # fmt: skip
    counters = tuple(f"speech_encoder.encoder.layers.{i}.conv.norm.num_batches_tracked" for i in range(encoder.depth))
    names = Names(
        skip=(*SPEAKERS, *TABLES, "text_encoder.", "speech_encoder.encoder.embed_positions.", *counters), inside=INSIDE
    )
    return _build(config, encoder.sources, RENAMED, names, speech=encoder)


def _build(config: Config, sources: int, norm: str, names: Names, **encoder: Any) -> ModelSpec:
    """norm: before self-attention. encoder: a field of `ModelSpec`."""
    hidden = hidden_size(config)
    heads = integer(config, "decoder_attention_heads", high=1 << 16)
    own = attention(config, "decoder_attention_heads", hidden, True)
    cross = CrossAttention(
        heads=heads, head_dim=hidden // heads, sources=sources, varies=True, width=hidden, bias=True, key_bias=True,
        name="cross_attention",
    )  # fmt: skip
    ffn = _feed_forward(config, "decoder_ffn_dim")
    layers = (
        Layer(own, None, Norms(mixer=_norm(norm, hidden))),
        Layer(cross, ffn, Norms(mixer=_norm("cross_attention_layer_norm", hidden), ffn=_norm("ffn_layer_norm", hidden))),
    )
    count = integer(config, "decoder_layers", high=MOST_LAYERS)
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=layers * count,
        numbers=tuple(i // 2 for i in range(2 * count)), norm=_norm("text_decoder.layer_norm", hidden),
        learned=(_places(config, "text_decoder.embed_positions"),), tied=flag(config, "tie_word_embeddings", True),
        embed_scale=hidden**0.5 if flag(config, "scale_embedding", True) else 1.0, layer="text_decoder.layers.{}.",
        embed="shared", root="", names=names, **encoder,
    )  # fmt: skip


def _conformer(config: Config, places: str, **more: Any) -> ConformerLayer:
    hidden, heads = hidden_size(config), integer(config, "speech_encoder_attention_heads", high=1 << 16)
    if hidden % heads or hidden // heads % 2:
        raise CheckpointError(f"config.json: hidden_size ({hidden}) must be an even multiple of {heads} attention heads")
    kind = config.get("position_embeddings_type", places)
    if kind not in PLACES or (kind == "relative_key" and "reach" not in more):
        raise UnsupportedModelError(f"config.json: position_embeddings_type: unknown {kind!r:.40}")
    kernel = integer(config, "conv_depthwise_kernel_size", high=1 << 16, default=31)
    if not kernel % 2:
        raise CheckpointError(f"config.json: conv_depthwise_kernel_size ({kernel}) must be odd")
    eps = real(config, "layer_norm_eps", default=EPS)
    if eps != EPS:
        raise UnsupportedModelError(f"config.json: layer_norm_eps: {eps}; supported: {EPS}")
    return ConformerLayer(
        hidden=hidden, heads=heads, inner=integer(config, "speech_encoder_intermediate_size", high=1 << 24),
        act=act(config, "speech_encoder_hidden_act", "silu"), bias=True, kernel=kernel, conv_bias=False, eps=eps,
        places=PLACES[kind], base=real(config, "rotary_embedding_base", 1, 1e12, default=1e4), **more,
    )  # fmt: skip


def _adapter(config: Config, layer: ConformerLayer) -> PoolingAdapter:
    stride = integer(config, "adaptor_stride", high=1 << 8, default=8)
    taps = integer(config, "adaptor_kernel_size", high=1 << 8, default=8)
    return PoolingAdapter(
        hidden=layer.hidden, heads=layer.heads, inner=layer.inner, act="relu", eps=layer.eps, taps=taps, stride=stride,
        layers=integer(config, "num_adapter_layers", high=100, default=1), at="speech_encoder.adapter.layers.",
    )  # fmt: skip


def _feed_forward(config: Config, key: str) -> UngatedMLP:
    inner = integer(config, key, high=1 << 24)
    return UngatedMLP(inner=inner, act=act(config, "activation_function", "relu", UNGATED), bias=True, name="ffn")


def _positions(config: Config) -> int:
    return integer(config, "max_position_embeddings", high=1 << 16)


def _places(config: Config, name: str) -> LearnedEmbedding:
    """Rows begin behind that of the padding token."""
    first, hidden = 1 + integer(config, "pad_token_id", low=0, high=1 << 16, default=0), hidden_size(config)
    if hidden % 2 or hidden < 4:
        raise CheckpointError(f"config.json: hidden_size: sines and cosines need an even number from 4, not {hidden}")
    return LearnedEmbedding(name, first + _positions(config), first=first, sines=hidden // 2 - 1)


def _norm(name: str, hidden: int) -> LayerNorm:
    return LayerNorm(name, hidden, EPS)
