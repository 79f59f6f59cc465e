"""Gemma 3n, text. Its files omit constants of llama.cpp: 20 layers have separate keys and values, and the first ten keep a
twentieth of their MLPs' activations."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

from thalweg.checkpoint.gguf.architectures.common import (
    AROUND,
    FULL,
    HEAD_NORMS,
    LAYER,
    WHOLE,
    WINDOWED,
    Architecture,
    Make,
    head_width,
    layer_types,
    layers,
    rename,
    rope,
)
from thalweg.checkpoint.gguf.architectures.gemma4 import INPUT, INPUTS, inputs
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.checkpoint.gguf.pieces import GGUFPiece
from thalweg.errors import CheckpointError

OWN, SPARSE = 20, 10
"""Defaults: the number of layers with separate keys and values, and of layers with sparse MLP activations."""
SHARE = 0.95
"""Share of activations that a sparse MLP drops."""


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    count, local = layers(keys), keys.real("rope.freq_base_swa", default=10_000.0)
    low = files.tensors.get("blk.0.laurel_l.weight")
    if low is None:
        raise CheckpointError(f"{files.path}: has no blk.0.laurel_l.weight, which every layer must have")
    return {
        "architectures": ["Gemma3nForCausalLM"], "model_type": "gemma3n_text", "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": layer_types(keys, 5), "sliding_window": keys.integer("attention.sliding_window", low=1),
        "intermediate_size": keys.each("feed_forward_length", count), "laurel_rank": low.shape[0],
        "num_kv_shared_layers": keys.integer("attention.shared_kv_layers", default=max(0, count - OWN)),
        "activation_sparsity_pattern": _shares(keys, count),
        "altup_active_idx": keys.integer("altup.active_idx", default=0),
        "altup_num_inputs": keys.integer("altup.num_inputs", default=4, low=2), "altup_correct_scale": True,
        "final_logit_softcapping": keys.real("final_logit_softcapping", default=30.0) or None,
        "rope_parameters": {
            FULL: rope(keys, files, head_width(keys)), WINDOWED: {"rope_type": "default", "rope_theta": local},
        },
        **inputs(keys, files),
    }  # fmt: skip


def _shares(keys: Keys, count: int) -> list[float]:
    """Sparsity of each layer, from the files' thresholds in standard deviations. -inf: not sparse."""
    scales = keys.numbers("activation_sparsity_scale", "f")
    if scales is None:
        return [SHARE if i < SPARSE else 0.0 for i in range(count)]
    if len(scales) < count:
        raise CheckpointError(f"{keys.path}: {keys.prefix}activation_sparsity_scale: must have an entry for each layer")
    return [round(NormalDist().cdf(float(above)), 6) for above in scales[:count]]


def _streams(name: str) -> Make:
    """One matrix for each stream except the first."""
    return lambda tensor, config: [
        (name.format(i), GGUFPiece(tensor.name, tensor.shape[1:], i))
        for i in range(tensor.shape[0] if len(tensor.shape) == 3 else 0)
    ]


GEMMA3N = Architecture(
    config=_config,
    layer={
        **LAYER, **HEAD_NORMS, **AROUND, **INPUT, "laurel_l": "laurel.linear_left", "laurel_r": "laurel.linear_right",
        "laurel_post_norm": "laurel.post_laurel_norm", "altup_router": "altup.modality_router",
        "altup_router_norm": "altup.router_norm", "altup_correct_coef": "altup.correction_coefs",
        "altup_predict_coef": "altup.prediction_coefs",
    },
    whole={**WHOLE, **INPUTS},
    uneven=True,
    dense=("altup_router", "altup_correct_coef", "altup_predict_coef"),
    special={
        "altup_correct_scale.weight": rename("altup.correct_output_scale"),
        "altup_proj.weight": _streams("model.altup_projections.{}.weight"),
        "altup_unembd_proj.weight": _streams("model.altup_unembed_projections.{}.weight"),
    },
)  # fmt: skip
