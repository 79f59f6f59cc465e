"""T5Gemma: a text encoder of Gemma 2's layers with bidirectional attention, and a decoder with cross attention. Each has
separate embeddings and sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.common import eps, hidden_size
from thalweg.models.families.gemma3 import sandwich_decoder
from thalweg.models.families.towers.common import outer_config
from thalweg.models.spec import CrossAttention, Layer, ModelSpec, Names, Norm, Norms, TextEncoder
from thalweg.models.spec.attention import Attention

CAPS = (50.0, 30.0)
"""Of scores and of logits, where the configuration does not say."""
NAMES = (("pre_self_attn_layernorm", "input_layernorm"), ("post_self_attn_layernorm", "post_attention_layernorm"))


def t5gemma(config: Config) -> ModelSpec:
    inner: Any = outer_config(config).get("encoder")
    if not isinstance(inner, dict):
        raise CheckpointError("config.json: encoder: must be an object with the sizes of the encoder")
    own = sandwich_decoder(config, 2, None, CAPS)
    encoder = sandwich_decoder(_both_ways(inner), 2, None, CAPS, both_ways=True)
    sources = integer(config, "max_source_positions", default=integer(inner, "max_position_embeddings", default=8192))
    layers = tuple(part for layer in own.layers for part in _split(config, layer, sources, encoder.hidden))
    return ModelSpec(
        vocab=own.vocab, hidden=own.hidden, layers=layers, numbers=tuple(i // 2 for i in range(len(layers))),
        norm=Norm("decoder.norm", own.hidden, eps(config), offset=1.0),
        text=TextEncoder(
            sources=sources, hidden=encoder.hidden, layers=encoder.layers, norm=encoder.norm, embed="embed_tokens",
            vocab=encoder.vocab, embed_scale=encoder.embed_scale,
        ),
        tied=flag(outer_config(config), "tie_word_embeddings", True), embed_scale=own.embed_scale,
        logit_softcap=own.logit_softcap, layer="decoder.layers.{}.", embed="decoder.embed_tokens", head="lm_head.out_proj",
        names=Names(inside=NAMES),
    )  # fmt: skip


def _both_ways(config: Config) -> Config:
    """A token sees as many tokens as the window to each side, of which `sandwich_decoder` halves it."""
    window = integer(config, "sliding_window", default=4096)
    return {**config, "sliding_window": None if config.get("sliding_window", 0) is None else 2 * window}


def _split(config: Config, layer: Layer, sources: int, width: int) -> Iterator[Layer]:
    """The two declared layers of one of the files. width: of a vector of the encoder."""
    hidden, heads, norms = hidden_size(config), layer.mixer, layer.norms
    assert isinstance(heads, Attention)
    yield Layer(heads, None, Norms(mixer=norms.mixer, mixer_out=norms.mixer_out))
    cross = CrossAttention(
        heads=heads.heads, kv_heads=heads.kv_heads, head_dim=heads.head_dim, sources=sources, varies=True, width=width,
        scale=heads.scale, softcap=heads.softcap, bias=heads.bias, key_bias=True, name="cross_attn", out="o_proj",
    )  # fmt: skip
    before, after = (Norm(f"{side}_cross_attn_layernorm", hidden, eps(config), offset=1.0) for side in ("pre", "post"))
    yield Layer(cross, layer.ffn, Norms(mixer=before, mixer_out=after, ffn=norms.ffn, ffn_out=norms.ffn_out))
