"""Gemma 4, text. Layers with full attention have other heads than windowed ones, with partial RoPE. A tensor of divisors gives
the rotated share: frequencies divided by 1 rotate, and by 1e30 do not."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import (
    AROUND,
    FULL,
    HEAD_NORMS,
    LAYER,
    WHOLE,
    WINDOWED,
    Architecture,
    layer_types,
    layers,
    mixture,
    rename,
    with_tensor,
)
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.errors import UnsupportedModelError

NEVER = 1e30
"""Divisor of frequencies without rotation."""
INPUTS = {
    "per_layer_token_embd": "model.embed_tokens_per_layer", "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}  # fmt: skip
INPUT = {
    "inp_gate": "per_layer_input_gate", "proj": "per_layer_projection", "post_norm": "post_per_layer_input_norm",
}  # fmt: skip
"""Tensors of the per-layer inputs, outside layers and within them."""


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    count, types = layers(keys), layer_types(keys, 6)
    kv = dict(zip(types, keys.each("attention.head_count_kv", count), strict=True))
    widths, shared = keys.each("feed_forward_length", count), keys.integer("attention.shared_kv_layers", default=0)
    with_values = with_tensor(files, keys, "attn_v.weight")
    own = range(count - shared)
    full = keys.integer("attention.key_length", low=2)
    settings = {
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": types, "sliding_window": keys.integer("attention.sliding_window", low=1),
        "head_dim": keys.integer("attention.key_length_swa", low=1), "global_head_dim": full,
        "num_key_value_heads": kv.get(WINDOWED, kv.get(FULL)), "num_global_key_value_heads": kv.get(FULL),
        "attention_k_eq_v": not all(with_values[i] for i in own if types[i] == FULL), "num_kv_shared_layers": shared,
        "intermediate_size": widths[0], "use_double_wide_mlp": max(widths) > widths[0],
        "final_logit_softcapping": keys.real("final_logit_softcapping", default=0.0) or None,
        "rope_parameters": {
            FULL: _positions(keys, files, full),
            WINDOWED: {"rope_type": "default", "rope_theta": keys.real("rope.freq_base_swa", default=10_000.0)},
        },
        **inputs(keys, files),
    }  # fmt: skip
    if "expert_count" not in keys or not keys.integer("expert_count"):
        return settings
    experts = mixture(keys)
    return settings | experts | {"enable_moe_block": True, "top_k_experts": experts["num_experts_per_tok"]}


def inputs(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    """Widths of the per-layer inputs."""
    table = files.tensors.get("per_layer_token_embd.weight")
    rows = {"vocab_size_per_layer_input": table.shape[0]} if table is not None else {}
    return {"hidden_size_per_layer_input": keys.integer("embedding_length_per_layer_input", default=0), **rows}


def _positions(keys: Keys, files: GGUFFiles, head_dim: int) -> dict[str, Any]:
    result = {"rope_type": "proportional", "rope_theta": keys.real("rope.freq_base"), "partial_rotary_factor": 1.0}
    if "rope_freqs.weight" not in files.tensors:
        return result
    factors = files.read("rope_freqs.weight")
    turns = int((factors == 1).sum())
    if factors.shape != (head_dim // 2,) or (factors[:turns] != 1).any() or (factors[turns:] < NEVER / 10).any():
        raise UnsupportedModelError(
            f"{files.path}: rope_freqs.weight: must have {head_dim // 2} values, 1 for those with rotation, and then 1e30"
        )
    return result | {"partial_rotary_factor": turns / (head_dim // 2)}


GEMMA4 = Architecture(
    config=_config,
    layer={
        **LAYER, **HEAD_NORMS, **AROUND, **INPUT, "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2", "post_ffw_norm_2": "post_feedforward_layernorm_2",
        "ffn_gate_inp": "router.proj",
    },
    experts={f"ffn_{part}_exps": f"experts.{{}}.{part}_proj" for part in ("gate", "up", "down")},
    whole={**WHOLE, **INPUTS},
    dense=("ffn_gate_inp",),
    uneven=True,
    special={
        "layer_output_scale.weight": rename("layer_scalar"), "ffn_gate_inp.scale": rename("router.scale"),
        "ffn_down_exps.scale": rename("router.per_expert_scale"),
    },
)  # fmt: skip
