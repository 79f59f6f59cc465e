"""Llama 1 to 3.3, Mistral, Mixtral, and the many models converted as Llama."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, has, layers, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.errors import UnsupportedModelError


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    hidden, heads = keys.integer("embedding_length", low=1), keys.integer("attention.head_count", low=1)
    head_dim = keys.integer("attention.key_length", default=keys.integer("rope.dimension_count", default=hidden // heads))
    result = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "head_dim": head_dim,
        "rope_parameters": rope(keys, files, head_dim), "attention_bias": has(files, "attn_q.bias", "attn_qkv.bias"),
        "mlp_bias": has(files, "ffn_up.bias"),
    }  # fmt: skip
    window = keys.integer("attention.sliding_window", default=0)
    if window:  # Mistral 7B 0.1
        result |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}
    experts = keys.integer("expert_count", default=0, high=1 << 16)
    return result | _mixture(keys, files, experts, result) if experts else result


def _mixture(keys: Keys, files: GGUFFiles, experts: int, result: dict[str, Any]) -> dict[str, Any]:
    """Additional keys of Mixtral. llama.cpp always normalises the routing weights of the selected experts."""
    if result["attention_bias"] or result["mlp_bias"]:
        raise UnsupportedModelError(f"{files.path}: llama.expert_count: mixtures of experts with biases are not read")
    plain = [i for i in range(layers(keys)) if f"blk.{i}.ffn_gate_inp.weight" not in files.tensors]
    if plain:
        raise UnsupportedModelError(f"{files.path}: layer {plain[0]} has no router: layers without experts are not read here")
    return {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": experts,
        "num_experts_per_tok": keys.integer("expert_used_count", low=1, high=experts),
    }  # fmt: skip


LLAMA = Architecture(
    config=_config,
    layer={**LAYER, "ffn_gate_inp": "block_sparse_moe.gate"},
    experts={
        "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    },
    dense=("ffn_gate_inp",),
    turned=True,
)
