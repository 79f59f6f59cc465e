"""Qwen1.5-MoE and Qwen2-57B-A14B. llama.cpp does not normalise the routing weights of the selected experts."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import EXPERTS, LAYER, Architecture, head_width, mixture, rope, row
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys

SHARED = {f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")}
"""Tensors of the shared expert."""


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    shared = keys.integer("expert_shared_feed_forward_length", default=keys.integer("feed_forward_length"), low=1)
    return {
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "hidden_act": "silu", "decoder_sparse_step": 1,
        **mixture(keys), "shared_expert_intermediate_size": shared, "mlp_only_layers": [], "use_sliding_window": False,
        "norm_topk_prob": keys.flag("expert_weights_norm", default=False),
        "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


QWEN2MOE = Architecture(
    config=_config,
    layer={**LAYER, **SHARED, "ffn_gate_inp": "mlp.gate"},
    experts=EXPERTS,
    dense=("ffn_gate_inp", "ffn_gate_inp_shexp"),
    special={"ffn_gate_inp_shexp.weight": row("mlp.shared_expert_gate.weight")},
)
