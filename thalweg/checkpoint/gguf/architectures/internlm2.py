"""InternLM 2 and 2.5, and dense XVERSE: Llama's layers under other names, which files do not have."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, has, head_width, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    """Keys of Llama's configuration."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "attention_bias": has(files, "attn_q.bias", "attn_qkv.bias"), "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


INTERNLM2 = Architecture(config=config, layer=LAYER, turned=True)
