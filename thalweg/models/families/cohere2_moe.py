"""Command A+: Command R7B with a mixture of experts and a shared expert."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from thalweg.checkpoint.config import Config, flag, integer, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.cohere import cohere2, heads
from thalweg.models.families.common import act, eps, hidden_size, layer_count, mlp
from thalweg.models.families.mixtures import sparse
from thalweg.models.spec import Attention, ModelSpec, MoE, Norm, Norms


def cohere2_moe(config: Config) -> ModelSpec:
    first = integer(config, "first_k_dense_replace", low=0, high=10_000, default=0)
    config = {"head_dim": 128, **config}
    if config.get("layer_types") is None:
        counts = (first, "prefix_dense_sliding_window_pattern", 1), (layer_count(config) - first, "sliding_window_pattern", 4)
        config["layer_types"] = [
            "sliding_attention" if (i + 1) % integer(config, key, default=every) else "full_attention"
            for count, key, every in counts for i in range(count)
        ]  # fmt: skip
    result, moe, mixed = cohere2(config), _mixture(config), sparse(config, first)
    plain = mlp(config, inner=integer(config, "prefix_dense_intermediate_size", high=1 << 24)) if not all(mixed) else None
    # A dense layer with full attention has positions too, where all dense layers do.
    reported = integer(config, "prefix_dense_sliding_window_pattern", default=1) == 1
    layers = [
        replace(each, ffn=moe if chosen or plain is None else plain) for each, chosen in zip(result.layers, mixed, strict=True)
    ]
    if reported and plain is not None:
        turned = heads(config).rope
        layers = [
            each if chosen else replace(each, mixer=replace(cast(Attention, each.mixer), rope=turned))
            for each, chosen in zip(layers, mixed, strict=True)
        ]
    if config.get("rms_norm_eps") is None:
        return replace(result, layers=tuple(layers))
    hidden, e = hidden_size(config), eps(config)
    norms = Norms(mixer=Norm("input_layernorm", hidden, e))
    return replace(result, layers=tuple(replace(each, norms=norms) for each in layers), norm=Norm("norm", hidden, e))


def _mixture(config: Config) -> MoE:
    experts, inner = integer(config, "num_experts", default=8), integer(config, "intermediate_size")
    scores = text(config, "expert_selection_fn", "softmax")
    shared = integer(config, "num_shared_experts", low=0, high=1 << 16, default=0)
    together = text(config, "shared_expert_combination_strategy", "average")
    if scores not in ("softmax", "sigmoid") or together not in ("sum", "average"):
        raise UnsupportedModelError(
            "config.json: expert_selection_fn is softmax or sigmoid, shared_expert_combination_strategy sum or average"
        )
    return MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(2, experts)), inner=inner,
        act=act(config), scores=scores, renormalise=scores == "softmax" or flag(config, "norm_topk_prob", True),
        shared=mlp(config, inner=shared * inner, name="shared_experts") if shared else None,
        average=bool(shared) and together == "average",
    )  # fmt: skip
