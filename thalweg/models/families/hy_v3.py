"""Hy3: QK-norm, and sigmoid routers with expert bias on all layers but the first."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import attention, decoder, eps, layer_count, mlp, pre_norms
from thalweg.models.families.mixtures import sigmoid_mixture, sparse
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, Names


def hy_v3(config: Config) -> ModelSpec:
    config = {
        "rope_theta": 11_158_840.0, "router_scaling_factor": 2.826, **config, "rms_norm_eps": eps(config, default=1e-5),
    }  # fmt: skip
    bias, norms, layers = flag(config, "attention_bias", False), pre_norms(config), layer_count(config)
    heads = attention(
        config, head_dim=integer(config, "head_dim", default=128), bias=bias, out_bias=bias,
        norm=HeadNorm(eps(config)),
    )  # fmt: skip
    moe = sigmoid_mixture(
        {**config, "norm_topk_prob": True}, experts="num_experts", shared="num_shared_experts", scale="router_scaling_factor",
        most=192, inner=1536, correction="expert_bias", router="router.gate",
    )  # fmt: skip
    plain = mlp(config, bias=flag(config, "mlp_bias", False))
    return decoder(
        config, [Layer(heads, moe if chosen else plain, norms) for chosen in sparse(config, 1)],
        names=Names(inside=((".shared_mlp.", ".shared_experts."),), skip=(f"model.layers.{layers}.",)),
    )  # fmt: skip
