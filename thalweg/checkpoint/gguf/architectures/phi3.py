"""Phi-3, Phi-3.5 and Phi-4: q, k and v in one tensor, gate and up in another. llama.cpp ignores the files' window. It applies
here, as in transformers."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, head_width, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    """A window of 0 means none."""
    return {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_act": "silu",
        "sliding_window": keys.integer("attention.sliding_window", default=0) or None,
        "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


PHI3 = Architecture(
    config=_config,
    layer={**LAYER, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
)
