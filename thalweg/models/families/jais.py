"""Jais: GPT-2 with ALiBi, SwiGLU, and muP's factors of embeddings, scores and logits."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.bloom import slopes
from thalweg.models.families.common import head_size, hidden_size
from thalweg.models.families.gpt import gpt_decoder, inner_mlp, layer_norm
from thalweg.models.spec import FFN, MLP, Attention, Layer, LearnedEmbedding, ModelSpec, Norms

USUAL = {"scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False, "add_cross_attention": False,
         "scale_attn_weights": True}  # fmt: skip


def jais(config: Config) -> ModelSpec:
    for key, usual in USUAL.items():
        if flag(config, key, usual) != usual:
            raise UnsupportedModelError(f"config.json: {key}: this version serves Jais with {str(usual).lower()}")
    if config.get("alibi_scaling") is not None:
        raise UnsupportedModelError("config.json: alibi_scaling: slopes that change with the length are not supported")
    heads, size = integer(config, "num_attention_heads"), head_size(config)
    positions = text(config, "position_embedding_type", "learned")
    if positions not in ("alibi", "learned"):
        raise UnsupportedModelError(f"config.json: position_embedding_type: {positions!r:.80} is not alibi or learned")
    alibi = positions == "alibi"
    whole = flag(config, "scale_qk_dot_by_d", flag(config, "mup_scale_qk_dot_by_d", False))
    mixer = Attention(
        heads=heads, kv_heads=heads, head_dim=size, slopes=slopes(heads) if alibi else (),
        scale=size ** (-1.0 if whole else -0.5),
        bias=True, out_bias=True, name="attn", fused="c_attn", out="c_proj", turned=True,
    )  # fmt: skip
    learned = LearnedEmbedding("wpe", integer(config, "max_position_embeddings", high=1 << 24))
    scale = _factor(config, "embeddings_scale", _factor(config, "mup_embeddings_scale"))
    if scale != 1 and not alibi:
        raise UnsupportedModelError("config.json: embeddings_scale: must be 1 with learned positions")
    factor = _factor(config, "mup_output_alpha") * _factor(config, "mup_width_scale")
    return gpt_decoder(
        config, Layer(mixer, _ffn(config), Norms(mixer=layer_norm(config, "ln_1"), ffn=layer_norm(config, "ln_2"))),
        tied=flag(config, "tie_word_embeddings", True), learned=() if alibi else (learned,), embed_scale=scale,
        logit_scale=_factor(config, "width_scale", factor),
    )  # fmt: skip


def _ffn(config: Config) -> FFN:
    if config.get("activation_function") != "swiglu":
        return inner_mlp(config, up="c_fc", down="c_proj", turned=True)
    inner = integer(config, "n_inner", default=4 * hidden_size(config))
    return MLP(inner=inner, act="silu", gate="c_fc2", up="c_fc", down="c_proj", bias=True, turned=True)


def _factor(config: Config, key: str, absent: float = 1.0) -> float:
    return real(config, key, 1e-6, 1e6, default=absent)
