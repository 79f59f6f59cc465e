"""Kolibri 1: QK-norm, sliding windows with RoPE on four of five layers and NoPE on the fifth, pre- and post-norms, routers that
select by logits with expert bias, a shared expert."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import act, attention, decoder, eps, hidden_size, layer_count, layer_types, mlp
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, MoE, Names, Norm, Norms

INSIDE = (
    (".moe.router.expert_bias", ".mlp.gate.e_score_correction_bias"), (".post_attn_norm.", ".post_self_attn_layernorm."),
    (".post_ffn_norm.", ".post_mlp_layernorm."),
)  # fmt: skip


def kolibri1(config: Config) -> ModelSpec:
    config = {"head_dim": 128, "num_key_value_heads": 4, "sliding_window": 513, **config}
    config = {"num_local_experts": config.get("num_experts"), **config}  # either is the number
    hidden, e, experts = hidden_size(config), eps(config), integer(config, "num_local_experts", default=384)
    inner = integer(config, "shared_expert_intermediate_size", default=512)
    moe = MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(6, experts)),
        inner=integer(config, "moe_intermediate_size", default=512), act=act(config), scores="logits",
        renormalise=flag(config, "norm_topk_prob", False), correction="gate.e_score_correction_bias",
        shared=mlp(config, inner=inner, name="shared_experts"),
    )  # fmt: skip
    norms = Norms(
        mixer=Norm("input_layernorm", hidden, e), mixer_out=Norm("post_self_attn_layernorm", hidden, e),
        ffn=Norm("post_attention_layernorm", hidden, e), ffn_out=Norm("post_mlp_layernorm", hidden, e),
    )  # fmt: skip
    local = attention(config, window=integer(config, "sliding_window"), norm=HeadNorm(e))
    mixers = {"sliding_attention": local, "full_attention": replace(local, window=0, rope=None)}
    absent = ["sliding_attention" if (i + 1) % 5 else "full_attention" for i in range(layer_count(config))]
    layers = [Layer(mixers[kind], moe, norms) for kind in layer_types(config, absent)]
    return decoder(config, layers, names=Names(inside=INSIDE))
