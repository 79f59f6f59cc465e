"""GLM-4.5, 4.6 and 4.7: positions on half of each head, norms of q and k where the configuration says so, and mixtures whose
experts are chosen by sigmoids and a correction, beside one that every token goes to."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.models.families.common import act, attention, decoder, eps, head_size, layer_count, mlp, pre_norms, rope
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, MoE, Names


def glm4_moe(config: Config) -> ModelSpec:
    config = {"partial_rotary_factor": 0.5, **config, "rms_norm_eps": eps(config, default=1e-5)}
    head_dim, layers, norms = head_size(config), layer_count(config), pre_norms(config)
    heads = attention(
        config, head_dim=head_dim, rope=rope(config, head_dim, partial=True), bias=flag(config, "attention_bias", False),
        norm=HeadNorm(eps(config)) if flag(config, "use_qk_norm", False) else None,
    )  # fmt: skip
    experts = integer(config, "n_routed_experts", high=1 << 16, default=128)
    each, shared = (
        integer(config, "moe_intermediate_size", high=1 << 24, default=1408),
        integer(config, "n_shared_experts", default=1),
    )
    moe = MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(8, experts)), inner=each,
        act=act(config), scores="sigmoid", renormalise=flag(config, "norm_topk_prob", True),
        scale=real(config, "routed_scaling_factor", 1e-6, 1e6, default=1.0), correction="gate.e_score_correction_bias",
        groups=integer(config, "n_group", high=experts, default=1), top_groups=integer(config, "topk_group", default=1),
        shared=mlp(config, inner=shared * each, name="shared_experts"),
    )  # fmt: skip
    dense = integer(config, "first_k_dense_replace", low=0, default=1)
    drafts = integer(config, "num_nextn_predict_layers", low=0, high=64, default=1)
    return decoder(
        config, [Layer(heads, mlp(config) if i < dense else moe, norms) for i in range(layers)],
        names=Names(skip=tuple(f"model.layers.{layers + i}." for i in range(drafts))),
    )  # fmt: skip
