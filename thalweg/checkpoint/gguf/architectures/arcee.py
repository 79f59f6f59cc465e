"""Arcee AFM: Llama with an ungated squared-ReLU MLP."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, has, head_width, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {
        "architectures": ["ArceeForCausalLM"], "model_type": "arcee", "hidden_act": "relu2",
        "attention_bias": has(files, "attn_q.bias", "attn_qkv.bias"), "mlp_bias": has(files, "ffn_up.bias"),
        "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


ARCEE = Architecture(config=_config, layer=LAYER, turned=True)
