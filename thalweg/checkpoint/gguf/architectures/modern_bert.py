"""ModernBERT: RoPE, windows on two layers of three, no norm before the first attention."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.bert import check_encoder
from thalweg.checkpoint.gguf.architectures.common import FULL, WINDOWED, Architecture, layers
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    check_encoder(keys, files)
    every = keys.integer("attention.sliding_window_pattern", default=3, low=1)
    bases = {
        FULL: keys.real("rope.freq_base", default=160_000.0), WINDOWED: keys.real("rope.freq_base_swa", default=10_000.0),
    }  # fmt: skip
    return {
        "architectures": ["ModernBertModel"], "model_type": "modernbert", "norm_bias": False, "attention_bias": False,
        "hidden_activation": keys.text("hidden_activation", default="gelu"), "mlp_bias": False,
        "norm_eps": keys.real("attention.layer_norm_epsilon"),
        "local_attention": keys.integer("attention.sliding_window", low=1),
        "layer_types": [WINDOWED if i % every else FULL for i in range(layers(keys))],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
    }  # fmt: skip


MODERN_BERT = Architecture(
    config=_config,
    layer={
        "attn_norm": "attn_norm", "attn_qkv": "attn.Wqkv", "attn_output": "attn.Wo", "ffn_norm": "mlp_norm",
        "ffn_up": "mlp.Wi", "ffn_down": "mlp.Wo",
    },
    whole={"token_embd": "embeddings.tok_embeddings", "token_embd_norm": "embeddings.norm", "output_norm": "final_norm"},
    layers="layers.{}.{}",
    layer_norm=True,
)  # fmt: skip
