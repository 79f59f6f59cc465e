"""MiniMax-M2."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import (
    HEAD_NORMS,
    LAYER,
    SIGMOID,
    Architecture,
    gating,
    head_width,
    mixture,
    rename,
    rope,
)
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    gating(keys, SIGMOID, (SIGMOID,))
    return {
        "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "hidden_act": "silu",
        **mixture(keys, "num_local_experts", "intermediate_size"), "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


MINIMAX_M2 = Architecture(
    config=_config,
    layer={**LAYER, **HEAD_NORMS, "ffn_gate_inp": "block_sparse_moe.gate"},
    experts={
        f"ffn_{part}_exps": f"block_sparse_moe.experts.{{}}.{name}"
        for part, name in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
    },
    dense=("ffn_gate_inp",),
    special={"exp_probs_b.bias": rename("block_sparse_moe.e_score_correction_bias")},
)
