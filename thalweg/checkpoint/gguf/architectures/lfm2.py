"""LFM2, dense and MoE: short convolutions, and a few layers of attention."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import (
    LAYER,
    SIGMOID,
    WHOLE,
    Architecture,
    conv1d_weight,
    gating,
    head_width,
    mixture,
    rename,
    rope,
    scale,
    with_tensor,
)
from thalweg.checkpoint.gguf.architectures.recurrent import anywhere
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.errors import UnsupportedModelError

_LAYER = {
    **LAYER, "attn_norm": "operator_norm", "ffn_norm": "ffn_norm", "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm", "attn_k_norm": "self_attn.k_layernorm", "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3", "ffn_down": "feed_forward.w2", "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj", "ffn_gate_inp": "feed_forward.gate",
}  # fmt: skip
_WHOLE = {**WHOLE, "token_embd_norm": "model.embedding_norm", "output_norm": "model.embedding_norm"}
_SPECIAL = {
    "shortconv.conv.weight": conv1d_weight("conv.conv.weight"), "shortconv.conv.bias": rename("conv.conv.bias"),
    "exp_probs_b.bias": rename("feed_forward.expert_bias"),
}  # fmt: skip


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    if keys.integer("attention.sliding_window", default=0):
        raise UnsupportedModelError(f"{files.path}: {keys.prefix}attention.sliding_window: LFM2 with windows is not read")
    return {
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "block_auto_adjust_ff_dim": False,
        "norm_eps": keys.real("attention.layer_norm_rms_epsilon"), "conv_L_cache": keys.integer("shortconv.l_cache", low=2),
        "layer_types": ["conv" if each else "full_attention" for each in with_tensor(files, keys, "shortconv.conv.weight")],
        "conv_bias": anywhere(files, "shortconv.in_proj.bias"), "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


def _mixtures(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    """llama.cpp always normalises the routing weights of the selected experts."""
    gating(keys, SIGMOID, (SIGMOID,))
    return _config(keys, files) | mixture(keys) | {
        "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "norm_topk_prob": True,
        "num_dense_layers": keys.integer("leading_dense_block_count", default=0), "routed_scaling_factor": scale(keys),
        "use_expert_bias": any(name.endswith(".exp_probs_b.bias") for name in files.tensors),
    }  # fmt: skip


LFM2 = Architecture(config=_config, layer=_LAYER, whole=_WHOLE, uneven=True, special=_SPECIAL)
LFM2MOE = Architecture(
    config=_mixtures, layer=_LAYER, whole=_WHOLE, uneven=True, special=_SPECIAL, dense=("ffn_gate_inp",),
    experts={
        f"ffn_{part}_exps": f"feed_forward.experts.{{}}.{name}" for part, name in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
    },
)  # fmt: skip
