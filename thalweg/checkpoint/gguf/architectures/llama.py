"""Llama 1 to 3.3, Mistral, and the many models that are converted as Llama."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, has, rope
from thalweg.checkpoint.gguf.files import Files
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.errors import UnsupportedModelError


def _config(keys: Keys, files: Files) -> dict[str, Any]:
    if keys.integer("expert_count", default=0):
        raise UnsupportedModelError(f"{files.path}: llama.expert_count: Mixtral is not served by this version")
    hidden, heads = keys.integer("embedding_length", low=1), keys.integer("attention.head_count", low=1)
    head_dim = keys.integer("attention.key_length", default=keys.integer("rope.dimension_count", default=hidden // heads))
    made = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "head_dim": head_dim,
        "rope_parameters": rope(keys, files, head_dim), "attention_bias": has(files, "attn_q.bias", "attn_qkv.bias"),
        "mlp_bias": has(files, "ffn_up.bias"),
    }  # fmt: skip
    window = keys.integer("attention.sliding_window", default=0)
    if window:  # as Mistral 7B 0.1 has it
        made |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}
    return made


LLAMA = Architecture(config=_config, layer=LAYER, turned=True)
