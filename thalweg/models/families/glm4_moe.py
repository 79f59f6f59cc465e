"""GLM-4.5, 4.6 and 4.7: half-rotary RoPE, optional QK-norm, sigmoid router with expert bias, one shared expert."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import attention, decoder, eps, head_size, layer_count, mlp, pre_norms, rope
from thalweg.models.families.mixtures import sigmoid_mixture
from thalweg.models.families.nextn import attach_module
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, Names


def glm4_moe(config: Config) -> ModelSpec:
    config = {"partial_rotary_factor": 0.5, **config, "rms_norm_eps": eps(config, default=1e-5)}
    head_dim, layers, norms = head_size(config), layer_count(config), pre_norms(config)
    heads = attention(
        config, head_dim=head_dim, rope=rope(config, head_dim, partial=True), bias=flag(config, "attention_bias", False),
        norm=HeadNorm(eps(config)) if flag(config, "use_qk_norm", False) else None,
    )  # fmt: skip
    moe = sigmoid_mixture(config)
    dense = integer(config, "first_k_dense_replace", default=1)
    drafts = integer(config, "num_nextn_predict_layers", default=1)
    spec = decoder(
        config, [Layer(heads, mlp(config) if i < dense else moe, norms) for i in range(layers)],
        names=Names(skip=tuple(f"model.layers.{layers + i}." for i in range(drafts))),
    )  # fmt: skip
    return attach_module(spec, Layer(heads, moe, norms), eps(config)) if drafts else spec
