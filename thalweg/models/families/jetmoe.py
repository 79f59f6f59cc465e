"""JetMoE: mixtures of attention heads and of MLPs in every layer."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import act, decoder, eps, hidden_size, layer_count, rope
from thalweg.models.spec import ExpertAttention, Layer, ModelSpec, MoE, Norm, Norms

NORM_EPS = 1e-6
"""Of norms in layers, whatever the configuration has."""


def jetmoe(config: Config) -> ModelSpec:
    hidden, size = hidden_size(config), integer(config, "kv_channels", high=1 << 16, default=128)
    experts = integer(config, "num_local_experts", high=1 << 16, default=8)
    top = integer(config, "num_experts_per_tok", high=experts, default=min(2, experts))
    mixer = ExpertAttention(
        experts=experts, top_k=top, kv_heads=integer(config, "num_key_value_heads", default=16), head_dim=size,
        rope=rope(config, size),
    )  # fmt: skip
    moe = MoE(
        experts=experts,
        top_k=top,
        inner=integer(config, "intermediate_size"),
        act=act(config, "activation_function"),
        renormalise=True,
        router="router.layer",
        fused=("input_linear.weight", "output_linear.weight"),
        sum_bias="bias",
    )
    norms = Norms(mixer=Norm("input_layernorm", hidden, NORM_EPS), ffn=Norm("post_attention_layernorm", hidden, NORM_EPS))
    return decoder(
        config, [Layer(mixer, moe, norms)] * layer_count(config), norm=Norm("norm", hidden, eps(config)),
        tied=flag(config, "tie_word_embeddings", True),
    )  # fmt: skip
