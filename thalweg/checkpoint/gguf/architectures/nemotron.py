"""Nemotron 3 and 4, and Minitron. The converter added 1 to the weights of the layer norms."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, has, head_width, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {
        "architectures": ["NemotronForCausalLM"], "model_type": "nemotron", "hidden_act": "relu2",
        "norm_eps": keys.real("attention.layer_norm_epsilon"), "attention_bias": has(files, "attn_q.bias", "attn_qkv.bias"),
        "mlp_bias": has(files, "ffn_up.bias"),
        "rope_parameters": {"partial_rotary_factor": 1.0, **rope(keys, files, head_width(keys))},
    }  # fmt: skip


NEMOTRON = Architecture(config=_config, layer=LAYER, layer_norm=True, raised=True)
