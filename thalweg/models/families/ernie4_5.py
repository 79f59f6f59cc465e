"""Ernie 4.5: Llama with interleaved RoPE and optional biases. Its MoE has a softmax router with expert bias, and begins at a
configured layer."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import act, attention, decoder, eps, head_size, layer_count, mlp, pre_norms, rope
from thalweg.models.spec import Attention, Layer, ModelSpec, MoE, MTPSpec, Names, Norm

MODULE = "model.mtp_"
"""Prefix of the tensors of the module for multi-token prediction."""


def ernie4_5(config: Config) -> ModelSpec:
    config = defaults(config)
    inner = mlp(config, bias=flag(config, "use_bias", False))
    layer = Layer(heads(config, integer(config, "head_dim", default=128)), inner, pre_norms(config))
    return decoder(config, [layer] * layer_count(config), tied=flag(config, "tie_word_embeddings", True))


def ernie4_5_moe(config: Config) -> ModelSpec:
    config, layers = defaults(config), layer_count(config)
    bias, each = flag(config, "use_bias", False), integer(config, "moe_intermediate_size", default=1536)
    experts, shared = (
        integer(config, "moe_num_experts", default=64),
        integer(config, "moe_num_shared_experts", low=0, default=2),
    )
    moe = MoE(
        experts=experts, top_k=integer(config, "moe_k", high=experts, default=6), inner=each, act=act(config), renormalise=True,
        correction="moe_statics.e_score_correction_bias", correction_rows=1,
        shared=mlp(config, inner=shared * each, name="shared_experts", bias=bias) if shared else None,
    )  # fmt: skip
    first, every = integer(config, "moe_layer_start_index", low=0, default=1), integer(config, "moe_layer_interval", default=1)
    last = integer(config, "moe_layer_end_index", low=-1, default=-1)
    last, plain = layers - 1 if last == -1 else last, mlp(config, bias=bias)
    parts = [moe if (i + 1) % every == 0 and first <= i <= last else plain for i in range(layers)]
    attend, norms = heads(config, head_size(config)), pre_norms(config)
    spec = decoder(
        config, [Layer(attend, part, norms) for part in parts], tied=flag(config, "tie_word_embeddings", True),
        names=Names(skip=(MODULE,)),
    )  # fmt: skip
    if not integer(config, "num_nextn_predict_layers", low=0, default=0):
        return spec
    return replace(spec, mtp=_module(config, spec.vocab, spec.hidden, Layer(attend, plain, norms)))


def _module(config: Config, vocab: int, hidden: int, layer: Layer) -> MTPSpec:
    """The first module. It has no norm after its layer."""
    e = eps(config)
    return MTPSpec(
        vocab=vocab, hidden=hidden, layers=(layer,), norm=None, token_norm=Norm("emb_norm.0", hidden, e),
        hidden_norm=Norm("hidden_norm.0", hidden, e), proj="linear_proj.0", hidden_first=False, root=MODULE, layer="block.{}.",
    )  # fmt: skip


def defaults(config: Config) -> Config:
    return {"rope_theta": 500_000.0, **config, "rms_norm_eps": eps(config, default=1e-5)}


def heads(config: Config, head_dim: int) -> Attention:
    bias = flag(config, "use_bias", False)
    return attention(
        config, head_dim=head_dim, rope=rope(config, head_dim, interleaved=True), bias=bias, out_bias=bias
    )  # fmt: skip
