"""Qwen3 MoE. llama.cpp always normalises the routing weights of the selected experts."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures import qwen3
from thalweg.checkpoint.gguf.architectures.common import Architecture, layers
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    used = keys.integer("expert_used_count", low=1)
    inner = keys.integer("expert_feed_forward_length", default=keys.integer("feed_forward_length", default=0) // used, low=1)
    return qwen3.config(keys, files) | {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "decoder_sparse_step": 1,
        "num_experts": keys.integer("expert_count", low=1, high=1 << 16), "num_experts_per_tok": used,
        "moe_intermediate_size": inner,
        "norm_topk_prob": keys.flag("expert_weights_norm", default=True),
        "mlp_only_layers": [i for i in range(layers(keys)) if f"blk.{i}.ffn_gate_inp.weight" not in files.tensors],
    }  # fmt: skip


QWEN3MOE = Architecture(
    config=_config,
    layer={**qwen3.LAYER_QWEN3, "ffn_gate_inp": "mlp.gate"},
    experts={
        "ffn_gate_exps": "mlp.experts.{}.gate_proj",
        "ffn_up_exps": "mlp.experts.{}.up_proj",
        "ffn_down_exps": "mlp.experts.{}.down_proj",
    },
    dense=("ffn_gate_inp",),
)
