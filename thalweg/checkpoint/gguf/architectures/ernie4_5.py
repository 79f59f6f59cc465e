"""Ernie 4.5, dense and MoE: RoPE rotates neighbouring pairs, as in transformers."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import EXPERTS, LAYER, Architecture, has, head_width, mixture, rope, row
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {
        "architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "hidden_act": "silu",
        "use_bias": has(files, "attn_q.bias"), "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


def _mixtures(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    settings = mixture(keys, "moe_num_experts")
    return _config(keys, files) | settings | {
        "architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "moe_k": settings["num_experts_per_tok"],
        "moe_num_shared_experts": keys.integer("expert_shared_count", default=0),
        "moe_layer_start_index": keys.integer("leading_dense_block_count", default=0),
        "moe_layer_interval": keys.integer("interleave_moe_layer_step", default=1, low=1),
    }  # fmt: skip


ERNIE4_5 = Architecture(config=_config, layer=LAYER)
ERNIE4_5_MOE = Architecture(
    config=_mixtures,
    layer={
        **LAYER, "ffn_gate_inp": "mlp.gate",
        **{f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
    },
    experts=EXPERTS, dense=("ffn_gate_inp",), special={"exp_probs_b.bias": row("mlp.moe_statics.e_score_correction_bias")},
)  # fmt: skip
