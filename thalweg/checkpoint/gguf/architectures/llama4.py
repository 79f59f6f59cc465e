"""Llama 4, text. Its files omit the chunk length, and the scaling of attention with position."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, has, head_width, layers, mixture, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys

CHUNK, EVERY = 8192, 4
"""Tokens of a chunk, and a period of layers. The last layer of each period has full attention and NoPE."""
UNNORMED = 128
"""Number of Maverick's experts. Maverick has no QK-norm."""
_FEED_FORWARD = {f"ffn_{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")}
_SHARED = {f"ffn_{part}_shexp": f"feed_forward.shared_expert.{part}_proj" for part in ("gate", "up", "down")}


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    """A window of 0 means that every layer has full attention and RoPE."""
    whole = keys.integer("attention.sliding_window", default=CHUNK) == 0
    settings = mixture(keys, "num_local_experts", "intermediate_size")
    return {
        "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "hidden_act": "silu", **settings,
        "intermediate_size_mlp": keys.integer("feed_forward_length", low=0),
        "interleave_moe_layer_step": keys.integer("interleave_moe_layer_step", default=1, low=1),
        "attention_chunk_size": None if whole else CHUNK, "attention_bias": has(files, "attn_q.bias", "attn_qkv.bias"),
        "no_rope_layers": [int(whole or (i + 1) % EVERY > 0) for i in range(layers(keys))],
        "use_qk_norm": settings["num_local_experts"] != UNNORMED, "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


LLAMA4 = Architecture(
    config=_config,
    layer={**LAYER, **_FEED_FORWARD, **_SHARED, "ffn_gate_inp": "feed_forward.router"},
    experts={f"ffn_{part}_exps": f"feed_forward.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")},
    dense=("ffn_gate_inp",),
)
