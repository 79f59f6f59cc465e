"""MiniCPM 1, 2 and 4: Llama with scaled embeddings, residuals and logits, which is the computation of Granite."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, has, head_width, layers, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys

_EMBEDDING, _DEPTH, _BASE = 12.0, 1.4, 256
"""scale_emb, scale_depth and dim_model_base of the first models. Old files have no keys for them."""


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    head_dim = head_width(keys)
    return {
        "architectures": ["GraniteForCausalLM"], "model_type": "granite", "hidden_act": "silu",
        "embedding_multiplier": keys.real("embedding_scale", default=_EMBEDDING),
        "residual_multiplier": keys.real("residual_scale", default=_DEPTH / layers(keys) ** 0.5),
        "logits_scaling": keys.real("logit_scale", default=keys.integer("embedding_length", low=1) / _BASE),
        "attention_multiplier": head_dim**-0.5, "attention_bias": has(files, "attn_q.bias", "attn_qkv.bias"),
        "rope_parameters": rope(keys, files, head_dim),
    }  # fmt: skip


MINICPM = Architecture(config=_config, layer=LAYER, turned=True)
