"""Models with latent attention in Mistral's format (Mistral Large 3, Mistral Small 4): keys of params.json and tensor names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thalweg.errors import CheckpointError, UnsupportedModelError

SIZES = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""Keys common to both formats."""
OTHERS = ("vision_encoder.", "vision_language_adapter.", "patch_merger.", "pre_mm_projector_norm.")
"""Prefixes of the image encoders' tensors, which are not supported in these models."""
_MOE = {
    "num_experts": "n_routed_experts", "num_experts_per_tok": "num_experts_per_tok",
    "expert_hidden_dim": "moe_intermediate_size",
    "num_shared_experts": "n_shared_experts", "first_k_dense_replace": "first_k_dense_replace",
    "route_every_n": "moe_layer_freq", "num_expert_groups": "n_group", "num_expert_groups_per_tok": "topk_group",
    "routed_scale": "routed_scaling_factor",
}  # fmt: skip
_MEAN_NOTHING = ("expert_parallel", "expert_model_parallel")
_ATTENTION = {
    "attention.wq_a": "self_attn.q_a_proj", "attention.q_a_norm": "self_attn.q_a_layernorm",
    "attention.wq_b": "self_attn.q_b_proj", "attention.wq": "self_attn.q_proj",
    "attention.wkv_a_with_mqa": "self_attn.kv_a_proj_with_mqa", "attention.kv_a_norm": "self_attn.kv_a_layernorm",
    "attention.wkv_b": "self_attn.kv_b_proj", "gate": "mlp.gate",
}  # fmt: skip
_FFN = re.compile(r"(experts\.\d{1,4}|shared_experts)\.(w[123])")
_PARTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def is_latent(params: Mapping[str, Any]) -> bool:
    return bool(params.get("kv_lora_rank") or params.get("qk_rope_head_dim"))


def target(part: str) -> str | None:
    """Transformers' name for a part of a layer. None: not specific to these models."""
    if part in _ATTENTION:
        return _ATTENTION[part]
    found = _FFN.fullmatch(part)
    return None if found is None else f"mlp.{found[1]}.{_PARTS[found[2]]}"


def config(path: str | Path, params: Mapping[str, Any], rope: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of config.json specific to these models. rope: the `rope_parameters` common to all models of the format."""
    missing = [key for key in SIZES if not params.get(key)]
    if missing:
        raise CheckpointError(f"{path}: {missing[0]}: missing, in a model with latent attention")
    moe = params.get("moe")
    if not isinstance(moe, dict) or not {"num_experts", "num_experts_per_tok", "expert_hidden_dim"} <= moe.keys():
        raise CheckpointError(f"{path}: moe: must be an object with num_experts, num_experts_per_tok and expert_hidden_dim")
    if odd := sorted(k for k, v in moe.items() if v and k not in _MOE and k not in _MEAN_NOTHING):
        raise UnsupportedModelError(f"{path}: moe: {', '.join(odd)[:200]}: not known to this version")
    result = {ours: moe[theirs] for theirs, ours in _MOE.items() if moe.get(theirs) is not None}
    return {
        "architectures": ["MistralLarge3ForCausalLM"], "norm_topk_prob": True,
        "rope_interleave": True, "n_shared_experts": 0, **result, **{key: params[key] for key in SIZES},
        "rope_parameters": _rope(path, params, rope),
    }  # fmt: skip


def _rope(path: str | Path, params: Mapping[str, Any], rope: Mapping[str, Any]) -> dict[str, Any]:
    """RoPE settings. With `apply_scale`, YaRN's magnitude scales the attention scores, not the rotated values."""
    result = {**rope}
    yarn = params.get("yarn")
    if yarn:
        result["attention_factor"] = 1.0
        if yarn.get("apply_scale", True):
            result["mscale_all_dim"] = 1.0
    grows = params.get("llama_4_scaling")
    if not grows:
        return result
    keys, key = ("beta", "original_max_position_embeddings"), "original_max_position_embeddings"
    if not isinstance(grows, dict) or set(grows) != set(keys):
        raise UnsupportedModelError(f"{path}: llama_4_scaling: must be an object with {' and '.join(keys)}")
    if result.get(key, grows[key]) != grows[key]:
        raise UnsupportedModelError(f"{path}: llama_4_scaling: {key}: this version requires yarn's value")
    return result | {key: grows[key], "llama_4_scaling_beta": grows["beta"]}
