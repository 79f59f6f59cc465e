"""Phi-3.5-MoE: layer norms, biases in attention and the output matrix, two experts per token by sparsemixer."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real, rope_parameters
from thalweg.models.families.common import act, attention, decoder, eps, head_size, hidden_size, layer_count, rope
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, MoE, Norms

_MAGNITUDES = ("short_mscale", "long_mscale")
"""Factors of cos and sin, with short factors and with long ones."""


def phimoe(config: Config) -> ModelSpec:
    config = {"rope_theta": 1_000_000.0, **config}
    hidden, e, bias = hidden_size(config), eps(config, default=1e-5), flag(config, "attention_bias", False)
    window = integer(config, "sliding_window", low=0, default=0)
    moe = MoE(
        experts=integer(config, "num_local_experts", default=16),
        top_k=integer(config, "num_experts_per_tok", low=2, high=2, default=2),
        inner=integer(config, "intermediate_size"), act=act(config), scores="sparsemixer",
        jitter=real(config, "router_jitter_noise", 0, 1, default=0.01), name="block_sparse_moe", gate="w1", up="w3", down="w2",
    )  # fmt: skip
    norms = Norms(mixer=LayerNorm("input_layernorm", hidden, e), ffn=LayerNorm("post_attention_layernorm", hidden, e))
    head_dim = head_size(config)
    turned = rope(config, head_dim, keys=_MAGNITUDES if rope_parameters(config)["rope_type"] == "longrope" else ())
    if turned.parameters["rope_type"] == "longrope":
        for key in _MAGNITUDES:
            real(turned.parameters, key, 0, 1e6, where="config.json: rope_parameters")
    layer = Layer(attention(config, head_dim=head_dim, rope=turned, window=window, bias=bias, out_bias=bias), moe, norms)
    return decoder(
        config, [layer] * layer_count(config), norm=LayerNorm("norm", hidden, e), head_bias=flag(config, "lm_head_bias", False)
    )
