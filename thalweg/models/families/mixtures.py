"""MoE settings shared by several families: a router with groups, and shared experts."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, name_list, real
from thalweg.errors import CheckpointError
from thalweg.models.families.common import act, layer_count, mlp
from thalweg.models.spec import MoE


def mixture(
    config: Config, *, experts: str = "n_routed_experts", shared: str = "n_shared_experts",
    scale: str = "routed_scaling_factor", most: int = 128, top: int = 8, inner: int = 1408, **more: Any,
) -> MoE:  # fmt: skip
    """DeepSeek's MoE. experts, shared, scale: the configuration's keys. most, top, inner: defaults of absent keys. more:
    fields of `spec.MoE` that the family decides."""
    count = integer(config, experts, high=1 << 16, default=most)
    each = integer(config, "moe_intermediate_size", default=inner)
    always = integer(config, shared, low=0, high=1 << 16, default=1) if config.get(shared, 1) is not None else 0
    groups, kept = more.get("groups", 1), more.get("top_groups", 1)
    if count % groups or not 1 <= kept <= groups:
        raise CheckpointError(
            f"config.json: n_group, topk_group: {groups} groups, of which {kept} count, do not divide {count} experts"
        )
    section: dict[str, Any] = {
        "experts": count, "top_k": integer(config, "num_experts_per_tok", high=count, default=min(top, count)), "inner": each,
        "act": act(config), "scale": real(config, scale, 1e-6, 1e6, default=1.0),
        "shared": mlp(config, inner=always * each, name="shared_experts") if always else None,
    }  # fmt: skip
    return MoE(**(section | more))


def sigmoid_mixture(config: Config, *, renormalise: bool = True, **more: Any) -> MoE:
    """DeepSeek V3's MoE: a sigmoid router with expert bias, and groups scored by their best two experts. renormalise: the
    default of norm_topk_prob. more: arguments of `mixture`."""
    section: dict[str, Any] = {
        "scores": "sigmoid", "renormalise": flag(config, "norm_topk_prob", renormalise),
        "correction": "gate.e_score_correction_bias", "groups": integer(config, "n_group", default=1),
        "top_groups": integer(config, "topk_group", default=1),
    }  # fmt: skip
    return mixture(config, **(section | more))


def sparse(config: Config, dense: int) -> list[bool]:
    """Which layers have a mixture: by `mlp_layer_types`, or all but the first `dense`."""
    layers = layer_count(config)
    kinds = name_list(config, "mlp_layer_types", ("dense", "sparse"), layers)
    return [i >= dense for i in range(layers)] if kinds is None else [kind == "sparse" for kind in kinds]
