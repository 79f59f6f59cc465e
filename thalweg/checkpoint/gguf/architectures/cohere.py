"""Command R, Command R7B and Aya: RoPE rotates neighbouring pairs, as in transformers."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import HEAD_NORMS, LAYER, Architecture, has, head_width, layer_types, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {
        "architectures": ["CohereForCausalLM"], "model_type": "cohere", "hidden_act": "silu",
        "logit_scale": keys.real("logit_scale", default=1.0) or 1.0, "use_qk_norm": has(files, "attn_q_norm.weight"),
        "attention_bias": has(files, "attn_q.bias"), "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


def _cohere2_config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return _config(keys, files) | {
        "architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2", "layer_types": layer_types(keys, 4),
        "sliding_window": keys.integer("attention.sliding_window", low=1),
    }  # fmt: skip


COMMAND_R = Architecture(config=_config, layer={**LAYER, **HEAD_NORMS}, layer_norm=True)
COHERE2 = Architecture(config=_cohere2_config, layer=LAYER, layer_norm=True)
