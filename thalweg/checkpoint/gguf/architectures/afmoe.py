"""AFMoE (Trinity): gated attention, norms around each part, a sigmoid router. Embeddings are always scaled, as in llama.cpp."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import (
    EXPERTS,
    HEAD_NORMS,
    LAYER,
    SIGMOID,
    Architecture,
    gating,
    has,
    head_width,
    layer_types,
    mixture,
    rope,
    scale,
)
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.errors import UnsupportedModelError


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    gating(keys, SIGMOID, (SIGMOID,))
    if not keys.flag("expert_weights_norm", default=True):
        raise UnsupportedModelError(f"{files.path}: {keys.prefix}expert_weights_norm: only true is supported")
    return {
        "architectures": ["AfmoeForCausalLM"], "model_type": "afmoe", "hidden_act": "silu", "mup_enabled": True,
        **mixture(keys), "num_shared_experts": keys.integer("expert_shared_count", default=0), "route_scale": scale(keys),
        "num_dense_layers": keys.integer("leading_dense_block_count", default=0), "layer_types": layer_types(keys, 4),
        "sliding_window": keys.integer("attention.sliding_window", low=1), "attention_bias": has(files, "attn_q.bias"),
        "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


AFMOE = Architecture(
    config=_config,
    layer={
        **LAYER, **HEAD_NORMS, "attn_gate": "self_attn.gate_proj", "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_mlp_layernorm", "post_ffw_norm": "post_mlp_layernorm", "ffn_gate_inp": "mlp.router.gate",
        "exp_probs_b": "mlp.expert_bias",
        **{f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
    },
    experts=EXPERTS, dense=("ffn_gate_inp",), bare=("exp_probs_b",),
)  # fmt: skip
