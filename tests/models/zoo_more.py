"""Configurations of families that are built of parts which `zoo.CONFIGS` has already. They are held against transformers, and
their bytes counted, but they do not go through every test of the engine."""

from __future__ import annotations

from typing import Any

import transformers

_PHI = [1.0 + 0.5 * i for i in range(3)]
MORE: dict[str, tuple[Any, dict[str, Any]]] = {
    "gemma": (transformers.GemmaConfig, {"head_dim": 16, "tie_word_embeddings": True, "num_key_value_heads": 1}),
    "gemma2": (
        transformers.Gemma2Config,
        {
            "head_dim": 16, "num_hidden_layers": 3, "sliding_window": 10, "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0, "tie_word_embeddings": True,
        },
    ),
    "phi3": (transformers.Phi3Config, {"pad_token_id": 0, "sliding_window": 12}),
    "phi4-mini": (
        transformers.Phi3Config,
        {
            "pad_token_id": 0, "tie_word_embeddings": True, "original_max_position_embeddings": 128,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "short_factor": _PHI,
                "long_factor": [2 * f for f in _PHI], "original_max_position_embeddings": 128,
            },
        },
    ),
    "glm": (transformers.GlmConfig, {"head_dim": 24, "attention_bias": True, "pad_token_id": 0}),
    "olmo2": (transformers.Olmo2Config, {}),
    "olmo3": (
        transformers.Olmo3Config,
        {
            "num_hidden_layers": 5, "sliding_window": 10,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "full_attention": {
                    "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 64,
                    "attention_factor": 1.2,
                },
            },
        },
    ),
    "granite": (
        transformers.GraniteConfig,
        {
            "embedding_multiplier": 3.0, "logits_scaling": 0.7, "residual_multiplier": 0.4, "attention_multiplier": 0.2,
            "tie_word_embeddings": True,
        },
    ),
    "smollm3": (transformers.SmolLM3Config, {"num_hidden_layers": 5, "pad_token_id": 0}),
    "seed-oss": (transformers.SeedOssConfig, {"head_dim": 16, "attention_out_bias": True}),
    "exaone4": (transformers.Exaone4Config, {"num_hidden_layers": 5, "sliding_window": 9}),
    "exaone4-full": (transformers.Exaone4Config, {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "ernie4.5": (transformers.Ernie4_5Config, {"head_dim": 16, "use_bias": True}),
}  # fmt: skip
"""Name -> (configuration class, what differs from `zoo.SMALL`)."""
