"""MiniMax-M2: QK-norm over all heads at once, partial RoPE, sigmoid routers with expert bias on every layer."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families.common import act, attention, decoder, eps, layer_count, pre_norms, rope
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, MoE, Names


def minimax_m2(config: Config) -> ModelSpec:
    config = {"rope_theta": 5_000_000.0, **config}
    head_dim = integer(config, "head_dim", default=128)
    if config.get("rotary_dim") is not None:  # how the first files say it
        config = {"partial_rotary_factor": integer(config, "rotary_dim", high=head_dim) / head_dim, **config}
    experts = integer(config, "num_local_experts", default=256)
    moe = MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(8, experts)),
        inner=integer(config, "intermediate_size"), act=act(config), scores="sigmoid", renormalise=True,
        name="block_sparse_moe", correction="e_score_correction_bias", gate="w1", up="w3", down="w2",
    )  # fmt: skip
    turned = rope(config, head_dim, partial=True)
    heads = attention(config, head_dim=head_dim, rope=turned, norm=HeadNorm(eps(config), whole=True))
    return decoder(
        config, [Layer(heads, moe, pre_norms(config))] * layer_count(config), names=Names(skip=("model.mtp_modules.",))
    )  # fmt: skip
