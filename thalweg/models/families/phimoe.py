"""Phi-3.5-MoE: layer norms, biases of attention and of the output matrix, and two of many experts, chosen by a sparsemixer."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.models.families.common import act, attention, decoder, eps, hidden_size, layer_count
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, MoE, Norms


def phimoe(config: Config) -> ModelSpec:
    config = {"rope_theta": 1_000_000.0, **config}
    hidden, e, bias = hidden_size(config), eps(config, default=1e-5), flag(config, "attention_bias", False)
    window = integer(config, "sliding_window", low=0, default=0)
    moe = MoE(
        experts=integer(config, "num_local_experts", high=1 << 16, default=16),
        top_k=integer(config, "num_experts_per_tok", low=2, high=2, default=2),
        inner=integer(config, "intermediate_size", high=1 << 24), act=act(config), scores="sparsemixer",
        jitter=real(config, "router_jitter_noise", 0, 1, default=0.01), name="block_sparse_moe", gate="w1", up="w3", down="w2",
    )  # fmt: skip
    norms = Norms(mixer=LayerNorm("input_layernorm", hidden, e), ffn=LayerNorm("post_attention_layernorm", hidden, e))
    layer = Layer(attention(config, window=window, bias=bias, out_bias=bias), moe, norms)
    return decoder(
        config, [layer] * layer_count(config), norm=LayerNorm("norm", hidden, e), head_bias=flag(config, "lm_head_bias", False)
    )
