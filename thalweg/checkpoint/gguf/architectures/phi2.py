"""Phi-1, 1.5 and 2: layer norms, biases everywhere."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, WHOLE, Architecture, head_width, inner, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {
        "architectures": ["PhiForCausalLM"], "model_type": "phi", "hidden_act": "gelu_new", "qk_layernorm": False,
        "intermediate_size": inner(files), "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


PHI2 = Architecture(
    config=_config,
    layer={**LAYER, "attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
    whole={**WHOLE, "output_norm": "model.final_layernorm"},
    layer_norm=True,
)
