"""Mixtral: Mistral's layers with an MoE in each, and a window only where the configuration has one. Names of experts: w1 is
gate, w3 up, w2 down."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families.common import act, attention, decoder, layer_count, pre_norms
from thalweg.models.spec import Layer, ModelSpec, MoE, Names

MERGED = ((".mlp.", ".block_sparse_moe."), (".gate_proj.", ".w1."), (".up_proj.", ".w3."), (".down_proj.", ".w2."))
"""Names that transformers 5 gives these parts, where a checkpoint is saved as its modules hold it, and those of all others."""


def mixtral(config: Config) -> ModelSpec:
    config = {"rms_norm_eps": 1e-5, "rope_theta": 1e6, **config}
    experts = integer(config, "num_local_experts", default=8)
    moe = MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(2, experts)),
        inner=integer(config, "intermediate_size", default=14_336), act=act(config), renormalise=True,
        name="block_sparse_moe", gate="w1", up="w3", down="w2",
    )  # fmt: skip
    layer = Layer(attention(config, window=integer(config, "sliding_window", default=0)), moe, pre_norms(config))
    return decoder(config, [layer] * layer_count(config), names=Names(inside=MERGED))
