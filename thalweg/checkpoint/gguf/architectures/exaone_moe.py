"""K-EXAONE: EXAONE 4's attention with norms before each part, a sigmoid router. MTP layers are not read."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import (
    SIGMOID,
    Architecture,
    gating,
    head_width,
    layer_types,
    mixture,
    rope,
    scale,
)
from thalweg.checkpoint.gguf.architectures.glm4moe import GLM4MOE
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    gating(keys, SIGMOID, (SIGMOID,))
    return {
        "architectures": ["ExaoneMoeForCausalLM"], "model_type": "exaone_moe", "hidden_act": "silu",
        **mixture(keys), "num_shared_experts": keys.integer("expert_shared_count", default=0),
        "n_group": keys.integer("expert_group_count", default=1, low=1),
        "topk_group": keys.integer("expert_group_used_count", default=1, low=1),
        "first_k_dense_replace": keys.integer("leading_dense_block_count", default=0), "routed_scaling_factor": scale(keys),
        "norm_topk_prob": keys.flag("expert_weights_norm", default=False), "num_nextn_predict_layers": 0,
        "sliding_window": keys.integer("attention.sliding_window", low=1), "layer_types": layer_types(keys, 4),
        "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


EXAONE_MOE = Architecture(
    config=_config,
    layer={
        **GLM4MOE.layer, "ffn_norm": "post_attention_layernorm", "exp_probs_b": "mlp.e_score_correction_bias",
    },
    experts=GLM4MOE.experts,
    dense=GLM4MOE.dense,
    bare=GLM4MOE.bare,
)  # fmt: skip
