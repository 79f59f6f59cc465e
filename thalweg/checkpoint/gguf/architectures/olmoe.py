"""OLMoE. llama.cpp does not normalise the routing weights of the selected experts."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import (
    EXPERTS,
    HEAD_NORMS,
    LAYER,
    Architecture,
    has,
    head_width,
    mixture,
    rope,
)
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {
        "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "hidden_act": "silu",
        **mixture(keys, inner="intermediate_size"), "intermediate_size": keys.integer("feed_forward_length", low=1),
        "norm_topk_prob": False, "attention_bias": has(files, "attn_q.bias"),
        "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


OLMOE = Architecture(
    config=_config, layer={**LAYER, **HEAD_NORMS, "ffn_gate_inp": "mlp.gate"}, experts=EXPERTS, dense=("ffn_gate_inp",)
)
