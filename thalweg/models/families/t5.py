"""T5, FLAN-T5, mT5 and UMT5: a text encoder and a decoder, with relative position biases and unscaled scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import ACTIVATIONS, UNGATED, hidden_size, pooling
from thalweg.models.spec import (
    FFN,
    MLP,
    Attention,
    CrossAttention,
    Layer,
    Mixer,
    ModelSpec,
    Names,
    Norm,
    Norms,
    RelativeBias,
    TextEncoder,
    UngatedMLP,
)  # fmt: skip

MOST_LAYERS = 1000
UNREAD = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias."
"""Old files have a position bias of cross attention. No implementation reads it."""


Feed = Callable[[Config, str, int, int], FFN]
"""(config, side, layer, place in the layer) -> the feed-forward part there. side: encoder or decoder."""
Reader = Callable[[Config, int], Mixer]
"""(config, layer) -> the attention of the encoder."""


def t5(config: Config) -> ModelSpec:
    return build(config, each=False)


def umt5(config: Config) -> ModelSpec:
    """Each layer has its own position bias."""
    return build(config, each=True)


def t5_encoder(config: Config) -> ModelSpec:
    """The encoder for embeddings (sentence-T5, GTR)."""
    return _encoder_model(config, each=False)


def umt5_encoder(config: Config) -> ModelSpec:
    return _encoder_model(config, each=True)


def _ffn(config: Config, side: str, layer: int, place: int) -> FFN:
    section, inner, name = text(config, "feed_forward_proj", "relu"), integer(config, "d_ff", high=1 << 24), "DenseReluDense"
    gated, act = section.startswith("gated-"), section.removeprefix("gated-")
    known = ACTIVATIONS if gated else UNGATED
    act = "gelu_new" if section == "gated-gelu" else act
    if act not in known:
        raise UnsupportedModelError(f"config.json: feed_forward_proj: unknown {section!r:.80}; supported: {', '.join(known)}")
    at = f"layer.{place}.{name}"
    if gated:
        return MLP(inner=inner, act=known[act], name=at, gate="wi_0", up="wi_1", down="wo")
    return UngatedMLP(inner=inner, act=known[act], name=at, up="wi", down="wo")


def build(config: Config, each: bool, ffn: Feed = _ffn, reader: Reader | None = None) -> ModelSpec:
    """each: every layer has its own position bias, not only the first of a side. reader: None = attention to the whole text."""
    longest = integer(config, "max_position_embeddings", high=1 << 16)
    hidden, sources = hidden_size(config), integer(config, "max_source_positions", high=1 << 16, default=longest)
    heads, dim = _heads(config)
    cross = CrossAttention(
        heads=heads, head_dim=dim, sources=sources, varies=True, width=hidden, scale=1.0, name="layer.1.EncDecAttention",
        parts=("q", "k", "v"), out="o",
    )  # fmt: skip
    norms = Norms(mixer=_norm(config, 1), ffn=_norm(config, 2))
    layers: list[Layer] = []
    count = integer(config, "num_decoder_layers", high=MOST_LAYERS, default=integer(config, "num_layers", high=MOST_LAYERS))
    for i in range(count):
        own = Layer(attention(config, "decoder", i if each else 0, True), None, Norms(mixer=_norm(config, 0)))
        layers += [own, Layer(cross, ffn(config, "decoder", i, 2), norms)]
    tied = flag(config, "tie_word_embeddings", True)
    scales = flag(config, "scale_decoder_outputs", tied)
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=tuple(layers),
        numbers=tuple(i // 2 for i in range(2 * count)), norm=Norm("decoder.final_layer_norm", hidden, _eps(config)),
        text=TextEncoder(
            sources=sources, hidden=hidden, layers=_encoder_layers(config, each, ffn, reader),
            norm=Norm("final_layer_norm", hidden, _eps(config)), layer="block.{}.",
        ),
        tied=tied, logit_scale=hidden**-0.5 if scales else 1.0, root="", layer="decoder.block.{}.", embed="shared",
        names=Names(skip=("encoder.embed_tokens.", "decoder.embed_tokens.", UNREAD)),
    )  # fmt: skip


def _encoder_model(config: Config, each: bool) -> ModelSpec:
    hidden = hidden_size(config)
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=_encoder_layers(config, each),
        norm=Norm("encoder.final_layer_norm", hidden, _eps(config)), pooling=pooling(config, default="mean"), root="",
        layer="encoder.block.{}.", embed="shared", names=Names(skip=("encoder.embed_tokens.", "decoder.", "lm_head.")),
    )  # fmt: skip


def _encoder_layers(config: Config, each: bool, ffn: Feed = _ffn, reader: Reader | None = None) -> tuple[Layer, ...]:
    reader = reader or (lambda config, i: attention(config, "encoder", i if each else 0, False))
    norms = Norms(mixer=_norm(config, 0), ffn=_norm(config, 1))
    count = integer(config, "num_layers", high=MOST_LAYERS)
    return tuple(Layer(reader(config, i), ffn(config, "encoder", i, 1), norms) for i in range(count))


def _heads(config: Config) -> tuple[int, int]:
    return integer(config, "num_heads", high=1 << 16), integer(config, "d_kv", high=1 << 16, default=64)


def attention(config: Config, side: str, layer: int, causal: bool, name: str = "SelfAttention", **more: Any) -> Attention:
    """layer: the one with the position bias. name: of the tensors. more: fields of `spec.Attention`."""
    heads, dim = _heads(config)
    bias = RelativeBias(
        f"{side}.block.{layer}.layer.0.{name}.relative_attention_bias.weight",
        integer(config, "relative_attention_num_buckets", low=4, high=1 << 10, default=32),
        integer(config, "relative_attention_max_distance", low=8, high=1 << 16, default=128),
    )
    return Attention(
        heads=heads, kv_heads=heads, head_dim=dim, causal=causal, scale=1.0, name=f"layer.0.{name}",
        parts=("q", "k", "v"), out="o", relative=bias, **more,
    )  # fmt: skip


def _norm(config: Config, place: int) -> Norm:
    return Norm(f"layer.{place}.layer_norm", hidden_size(config), _eps(config))


def _eps(config: Config) -> float:
    return real(config, "rms_norm_eps", default=1e-6)
