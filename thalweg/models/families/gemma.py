"""Gemma and Gemma 2: (1 + w) RMSNorm, embeddings scaled by the square root of their width. Gemma 2 has a norm before and after
each part, a window on every other layer, and caps on scores and logits."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, text
from thalweg.models.families.common import act, attention, decoder, eps, hidden_size, layer_count, mlp
from thalweg.models.families.gemma3 import causal_only, sandwich_decoder
from thalweg.models.spec import Layer, ModelSpec, Norm, Norms


def gemma(config: Config) -> ModelSpec:
    causal_only(config)
    hidden, e, bias = hidden_size(config), eps(config), flag(config, "attention_bias", False)
    # Files of the first release say "gelu" and mean the formula with tanh, as transformers reads them.
    section = text(config, "hidden_act", "gelu_pytorch_tanh")
    inner = mlp(config, act="gelu_tanh" if section == "gelu" else act(config, default="gelu_pytorch_tanh"))
    heads = attention(
        config, head_dim=integer(config, "head_dim", default=256), bias=bias, out_bias=bias
    )  # fmt: skip
    norms = Norms(
        mixer=Norm("input_layernorm", hidden, e, offset=1.0), ffn=Norm("post_attention_layernorm", hidden, e, offset=1.0)
    )
    return decoder(
        config, [Layer(heads, inner, norms)] * layer_count(config), norm=Norm("norm", hidden, e, offset=1.0),
        tied=flag(config, "tie_word_embeddings", True), embed_scale=hidden**0.5,
    )  # fmt: skip


def gemma2(config: Config) -> ModelSpec:
    return sandwich_decoder(config, every=2, norm=None, caps=(50.0, 30.0))


def vault_gemma(config: Config) -> ModelSpec:
    """Gemma 2 without the norms after its parts."""
    result = gemma2(config)
    names = Norms(mixer=result.layers[0].norms.mixer, ffn=result.layers[0].norms.ffn)
    return replace(result, layers=tuple(replace(each, norms=names) for each in result.layers))
