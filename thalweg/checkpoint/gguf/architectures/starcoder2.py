"""StarCoder 2. Its files name no window, and llama.cpp applies none."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, has, head_width, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {
        "architectures": ["Starcoder2ForCausalLM"], "model_type": "starcoder2", "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": keys.real("attention.layer_norm_epsilon"), "use_bias": has(files, "attn_q.bias", "attn_qkv.bias"),
        "sliding_window": keys.integer("attention.sliding_window", default=0) or None,
        "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


STARCODER2 = Architecture(config=_config, layer={**LAYER, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}, layer_norm=True)
