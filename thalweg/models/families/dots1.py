"""dots.llm1: Qwen 3's attention heads, sigmoid router with expert bias."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import attention, decoder, eps, layer_count, layer_types, mlp, pre_norms, sliding_window
from thalweg.models.families.mixtures import sigmoid_mixture, sparse
from thalweg.models.spec import HeadNorm, Layer, ModelSpec


def dots1(config: Config) -> ModelSpec:
    config = {"n_shared_experts": None, **config}
    bias, window, first = (
        flag(config, "attention_bias", False),
        sliding_window(config),
        integer(config, "max_window_layers", default=62),
    )
    absent = ["sliding_attention" if window and i >= first else "full_attention" for i in range(layer_count(config))]
    heads = {
        kind: attention(config, window=wide, bias=bias, out_bias=bias, norm=HeadNorm(eps(config)))
        for kind, wide in (("sliding_attention", window), ("full_attention", 0))
    }
    moe, norms = sigmoid_mixture(config, renormalise=False), pre_norms(config)
    mixed = sparse(config, integer(config, "first_k_dense_replace", default=0))
    return decoder(config, [
        Layer(heads[kind], moe if chosen else mlp(config), norms)
        for kind, chosen in zip(layer_types(config, absent), mixed, strict=True)
    ])  # fmt: skip
