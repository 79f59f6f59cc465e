"""Gemma 2. Its files omit the scale of queries. Only in the largest (46 layers) does it differ from the head width's."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import AROUND, LAYER, Architecture, head_width, layer_types, layers, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys

LARGEST = 46


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    head_dim = head_width(keys)
    even = keys.integer("embedding_length") // keys.integer("attention.head_count")
    return {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": even if layers(keys) == LARGEST else head_dim,
        "sliding_window": keys.integer("attention.sliding_window", default=4096, low=1), "layer_types": layer_types(keys, 2),
        "attn_logit_softcapping": keys.real("attn_logit_softcapping", default=50.0) or None,
        "final_logit_softcapping": keys.real("final_logit_softcapping", default=30.0) or None,
        "rope_parameters": rope(keys, files, head_dim),
    }  # fmt: skip


GEMMA2 = Architecture(config=_config, layer={**LAYER, **AROUND}, raised=True)
