"""BLOOM: ALiBi. transformers groups q, k and v by head, and files do not."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import Architecture
from thalweg.checkpoint.gguf.architectures.gptneox import together
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {
        "architectures": ["BloomForCausalLM"], "model_type": "bloom",
        "layer_norm_epsilon": keys.real("attention.layer_norm_epsilon"),
    }  # fmt: skip


BLOOM = Architecture(
    config=_config,
    layer={
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_output": "self_attention.dense",
        "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h",
    },
    whole={
        "token_embd": "transformer.word_embeddings", "token_embd_norm": "transformer.word_embeddings_layernorm",
        "output_norm": "transformer.ln_f", "output": "lm_head",
    },
    layers="transformer.h.{}.{}", layer_norm=True,
    special={f"attn_qkv.{kind}": together(f"self_attention.query_key_value.{kind}") for kind in ("weight", "bias")},
)  # fmt: skip
