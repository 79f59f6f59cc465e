"""Qwen3, dense and MoE: QK-norm before RoPE, head_dim independent of hidden_size."""

from __future__ import annotations

import re
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, text
from thalweg.errors import CheckpointError
from thalweg.models.families.common import (
    act,
    attention,
    decoder,
    eps,
    layer_count,
    layer_windows,
    llama_decoder,
    mlp,
    pre_norms,
)
from thalweg.models.families.nextn import attach_module
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, MoE


def qwen3(config: Config) -> ModelSpec:
    """`mtp_folder` names a subfolder with a module for multi-token prediction, which the layers' readers do not open.
    `mtp_cache_layer`: the layer whose keys and values that module reads."""
    spec = llama_decoder(config, layer_windows(config), mlp(config), **_heads(config))
    folder = text(config, "mtp_folder", "")
    if not folder:
        return spec
    if not re.fullmatch(r"[\w-]+", folder):
        raise CheckpointError(f"config.json: mtp_folder: {folder!r:.80} is not the name of a folder")
    if config.get("mtp_cache_layer") is None:
        return attach_module(spec, spec.layers[-1], eps(config), folder)
    read = integer(config, "mtp_cache_layer", low=0, high=len(spec.layers) - 1)
    return attach_module(spec, spec.layers[read], eps(config), folder, read)


def qwen3_moe(config: Config) -> ModelSpec:
    """Layers of `mlp_only_layers`, and all but every `decoder_sparse_step`-th, have a plain MLP."""
    window = integer(config, "sliding_window", default=0, low=0) if flag(config, "use_sliding_window", False) else 0
    dense, step, norms = dense_layers(config), integer(config, "decoder_sparse_step", default=1), pre_norms(config)
    heads = attention(config, window=window, **_heads(config))
    experts = integer(config, "num_experts", default=integer(config, "num_local_experts", default=128))
    moe = MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(8, experts)),
        inner=integer(config, "moe_intermediate_size", default=768), act=act(config),
        renormalise=flag(config, "norm_topk_prob", False),
    )  # fmt: skip
    layers = range(layer_count(config))
    return decoder(config, [Layer(heads, mlp(config) if i in dense or (i + 1) % step else moe, norms) for i in layers])


def _heads(config: Config) -> dict[str, Any]:
    bias = flag(config, "attention_bias", False)
    head_dim = integer(config, "head_dim", default=128)
    return {"head_dim": head_dim, "bias": bias, "out_bias": bias, "norm": HeadNorm(eps(config))}


def dense_layers(config: Config) -> frozenset[int]:
    """Those that have a plain MLP whatever the others have."""
    section = config.get("mlp_only_layers") or []
    if not isinstance(section, list) or not all(isinstance(i, int) for i in section):
        raise CheckpointError("config.json: mlp_only_layers: must be a list of layer indices")
    return frozenset(section)
