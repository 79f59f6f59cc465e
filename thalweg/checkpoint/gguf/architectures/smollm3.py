"""SmolLM3: Llama's layers, with NoPE on every fourth."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, has, head_width, layers, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys

EVERY = 4


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {
        "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "hidden_act": "silu", "use_sliding_window": False,
        "no_rope_layers": [int((i + 1) % EVERY > 0) for i in range(layers(keys))],
        "attention_bias": has(files, "attn_q.bias"), "mlp_bias": has(files, "ffn_up.bias"),
        "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


SMOLLM3 = Architecture(config=_config, layer=LAYER, turned=True)
