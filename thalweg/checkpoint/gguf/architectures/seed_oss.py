"""Seed-OSS."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, has, head_width, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {
        "architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "hidden_act": "silu",
        "attention_bias": has(files, "attn_q.bias", "attn_qkv.bias"), "attention_out_bias": has(files, "attn_output.bias"),
        "mlp_bias": has(files, "ffn_up.bias"), "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


SEED_OSS = Architecture(config=_config, layer={**LAYER, "post_attention_norm": "post_attention_layernorm"})
