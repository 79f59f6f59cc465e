"""K-EXAONE: EXAONE 4's attention with pre-norm, sigmoid router with expert bias."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.common import attention, decoder, eps, layer_types, mlp, pre_norms, sliding_window
from thalweg.models.families.exaone4 import windows_by_pattern
from thalweg.models.families.mixtures import sigmoid_mixture, sparse
from thalweg.models.families.nextn import MODULE, attach_mtp
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, Names


def exaone_moe(config: Config) -> ModelSpec:
    config = {"routed_scaling_factor": 2.5, **config, "rms_norm_eps": eps(config, default=1e-5)}
    window, norms = sliding_window(config), pre_norms(config)
    full = attention(config, norm=HeadNorm(eps(config)))
    heads = {
        "sliding_attention": replace(full, window=window),
        "full_attention": replace(full, rope=None) if window else full,
    }
    moe = sigmoid_mixture(
        config, experts="num_experts", shared="num_shared_experts", most=64, inner=1024, correction="e_score_correction_bias"
    )
    mixed = sparse(config, integer(config, "first_k_dense_replace", default=1))
    layers = [
        Layer(heads[kind], moe if chosen else mlp(config), norms)
        for kind, chosen in zip(layer_types(config, windows_by_pattern(config, window)), mixed, strict=True)
    ]
    spec = decoder(config, layers, names=Names(skip=(MODULE,)))
    if not integer(config, "num_nextn_predict_layers", low=0, default=0):
        return spec
    kind = str((config.get("mtp_layer_types") or ["full_attention"])[0])
    if kind not in heads:
        raise CheckpointError(f"config.json: mtp_layer_types: {kind!r:.80} is not one of {', '.join(heads)}")
    return attach_mtp(spec, Layer(heads[kind], mlp(config), norms), eps(config))
