"""Qwen1.5-MoE and Qwen2-57B-A14B: Qwen 2 with a mixture of experts and a gated shared expert."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import act, attention, decoder, layer_count, layer_types, mlp, pre_norms, sliding_window
from thalweg.models.families.qwen3 import dense_layers
from thalweg.models.spec import Layer, ModelSpec, MoE


def qwen2_moe(config: Config) -> ModelSpec:
    """Layers of `mlp_only_layers`, and all but every `decoder_sparse_step`-th, have a plain MLP."""
    dense, step, norms = dense_layers(config), integer(config, "decoder_sparse_step", default=1), pre_norms(config)
    experts = integer(config, "num_experts", default=60)
    inner = integer(config, "shared_expert_intermediate_size", default=5632)
    moe = MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(4, experts)),
        inner=integer(config, "moe_intermediate_size", default=1408), act=act(config),
        renormalise=flag(config, "norm_topk_prob", False),
        shared=mlp(config, inner=inner, name="shared_expert"), shared_gate="shared_expert_gate",
    )  # fmt: skip
    bias = flag(config, "qkv_bias", True)
    heads = {window: attention(config, bias=bias, window=window) for window in set(_windows(config))}
    return decoder(config, [
        Layer(heads[window], mlp(config) if i in dense or (i + 1) % step else moe, norms)
        for i, window in enumerate(_windows(config))
    ])  # fmt: skip


def _windows(config: Config) -> tuple[int, ...]:
    """Every other layer of the first `max_window_layers`, where the configuration turns windows on."""
    window = sliding_window(config) if flag(config, "use_sliding_window", False) else 0
    most = integer(config, "max_window_layers", default=28)
    absent = [
        "sliding_attention" if window and i < most and (i + 1) % 2 else "full_attention" for i in range(layer_count(config))
    ]
    return tuple(window if kind == "sliding_attention" else 0 for kind in layer_types(config, absent))
