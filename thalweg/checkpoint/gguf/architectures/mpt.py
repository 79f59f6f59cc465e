"""MPT: ALiBi, no biases."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import Architecture, inner
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.errors import UnsupportedModelError


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    bias = keys.real("attention.max_alibi_bias", default=0.0)
    if not bias:
        raise UnsupportedModelError(f"{files.path}: {keys.prefix}attention.max_alibi_bias: only MPT with ALiBi is supported")
    return {
        "architectures": ["MptForCausalLM"], "model_type": "mpt",
        "expansion_ratio": inner(files) // keys.integer("embedding_length", low=1),
        "layer_norm_epsilon": keys.real("attention.layer_norm_epsilon"),
        "attn_config": {
            "alibi": True, "alibi_bias_max": bias, "clip_qkv": keys.real("attention.clamp_kqv", default=0.0) or None,
        },
    }  # fmt: skip


MPT = Architecture(
    config=_config,
    layer={
        "attn_norm": "norm_1", "attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj", "ffn_norm": "norm_2",
        "ffn_up": "ffn.up_proj", "ffn_down": "ffn.down_proj",
    },
    whole={"token_embd": "transformer.wte", "output_norm": "transformer.norm_f", "output": "lm_head"},
    layers="transformer.blocks.{}.{}", layer_norm=True,
)  # fmt: skip
