"""Nomic BERT encoder: post-norm layers, RoPE, gated MLPs without biases. nomic-embed-text is of this kind."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, integer, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import act, both_ways, classes, head_size, hidden_size, layer_count, mlp, pooling, rope
from thalweg.models.spec import FFN, Layer, LayerNorm, LearnedEmbedding, ModelSpec, Names, Norms
from thalweg.models.tail import Pooling

PLAIN = {
    "prenorm": False, "parallel_block": False, "use_rms_norm": False, "qkv_proj_bias": False, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "rotary_emb_interleaved": False, "rotary_emb_fraction": 1.0, "rotary_scaling_factor": None,
    "moe_every_n_layers": 0, "num_experts": 0,
}  # fmt: skip
"""Keys of parts with one supported form in this family -> that form in the published files."""


def nomic_bert(config: Config) -> ModelSpec:
    return _encoder(config, pooling(config, default="mean"), skip=("pooler.", "cls.", "lm_head."))


def nomic_bert_classifier(config: Config) -> ModelSpec:
    return _encoder(config, classes(config, dense="pooler.dense"))


def _encoder(config: Config, tail: Pooling, skip: tuple[str, ...] = ()) -> ModelSpec:
    for key, plain in PLAIN.items():
        if config.get(key, plain) not in (plain, None) and not (key == "rotary_scaling_factor" and config[key] == 1):
            raise UnsupportedModelError(f"config.json: {key}: {config[key]!r:.80} is not supported in this family")
    gate = {"swiglu": "silu", "geglu": "gelu"}.get(text(config, "activation_function", ""))
    inner = mlp(config, gate="fc12", up="fc11", down="fc2", act=gate or act(config))
    names = ("attn", "Wqkv", "out_proj", "norm1", "norm2")
    return rotary_encoder(
        config, tail, inner, names, base=1000.0, bias=False, types=2, layer="encoder.layers.{}.", norm="emb_ln",
        names=Names(replace=(("nomic_bert.", ""),), skip=(*skip, *(f"nomic_bert.{name}" for name in skip))),
    )  # fmt: skip


def rotary_encoder(
    config: Config, tail: Pooling, inner: FFN, parts: tuple[str, str, str, str, str], *, base: float, bias: bool, types: int,
    norm: str, **more: Any,
) -> ModelSpec:  # fmt: skip
    """BERT with rotary positions. parts: names of attention, of its two matrices, of the norms after both parts. base: of the
    rotary positions, and types: of tokens, where the configuration has none. norm: of the first layer's input."""
    hidden, eps = hidden_size(config), real(config, "layer_norm_eps", default=1e-12)
    theta = real(config, "rotary_emb_base", default=base)
    mixer, fused, out, first, second = parts
    layer = Layer(
        both_ways(
            config, rope=rope({"rope_theta": theta, **config}, head_size(config)), bias=bias, out_bias=bias, name=mixer,
            fused=fused, out=out,
        ),
        inner, Norms(mixer_sum=LayerNorm(first, hidden, eps), ffn_sum=LayerNorm(second, hidden, eps)),
    )  # fmt: skip
    types = integer(config, "type_vocab_size", low=0, default=types)
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=(layer,) * layer_count(config), norm=None,
        learned=(LearnedEmbedding("embeddings.token_type_embeddings", types, by="type"),) if types else (),
        embed_norm=LayerNorm(norm, hidden, eps), pooling=tail, root="", embed="embeddings.word_embeddings", **more,
    )  # fmt: skip
