"""Granite 3 and 4: dense, MoE, and hybrid with Mamba-2 layers."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, Make, head_width, join_part, rope, with_tensor
from thalweg.checkpoint.gguf.architectures.recurrent import anywhere, names, second, sizes
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.errors import UnsupportedModelError

_EXPERTS = {f"ffn_{part}_exps": f"block_sparse_moe.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")}
_ROUTER = {"ffn_gate_inp": "block_sparse_moe.router.layer"}


_ALIASES = {".shared_mlp.": ".block_sparse_moe.shared_mlp."}
"""Aliases in models with experts."""


def _shared_expert(end: str) -> dict[str, Make]:
    """The shared expert, with gate and up in one tensor. end: suffix of its names in files."""
    return {
        f"ffn_gate{end}.weight": join_part("shared_mlp.input_linear.weight", 0),
        f"ffn_up{end}.weight": join_part("shared_mlp.input_linear.weight", 1),
    }


def _multipliers(keys: Keys) -> dict[str, Any]:
    """Multipliers of activations. A stored 0 means none."""
    return {
        "attention_multiplier": keys.real("attention.scale", default=0.0) or head_width(keys) ** -0.5,
        "embedding_multiplier": keys.real("embedding_scale", default=1.0) or 1.0,
        "residual_multiplier": keys.real("residual_scale", default=1.0) or 1.0,
        "logits_scaling": keys.real("logit_scale", default=1.0) or 1.0,
    }  # fmt: skip


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    if not keys.flag("rope.scaling.finetuned", default=True):
        raise UnsupportedModelError(f"{files.path}: {keys.prefix}rope.scaling.finetuned: Granite with NoPE is not supported")
    return {
        "architectures": ["GraniteForCausalLM"], "model_type": "granite", "hidden_act": "silu", **_multipliers(keys),
        "attention_bias": anywhere(files, "attn_q.bias"), "mlp_bias": anywhere(files, "ffn_up.bias"),
        "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


def _mixtures(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return _config(keys, files) | {
        "architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared", **_numbers(keys),
    }  # fmt: skip


def _numbers(keys: Keys) -> dict[str, Any]:
    experts = keys.integer("expert_count", default=0, high=1 << 16)
    return {
        "num_local_experts": experts, "num_experts_per_tok": keys.integer("expert_used_count", default=0),
        "shared_intermediate_size": keys.integer("expert_shared_feed_forward_length", default=0),
    }  # fmt: skip


def _hybrid(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    """Without experts, the shared expert is the feed-forward part."""
    settings = _numbers(keys)
    if not settings["shared_intermediate_size"]:
        settings["shared_intermediate_size"] = max(keys.each("feed_forward_length", keys.integer("block_count")))
    recurrent = with_tensor(files, keys, "ssm_in.weight")
    turns = keys.flag("rope.scaling.finetuned", default=True)
    return {
        "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "hidden_act": "silu",
        **_multipliers(keys), **settings, **sizes(keys, files),
        "layer_types": ["mamba" if each else "attention" for each in recurrent],
        "position_embedding_type": "rope" if turns else "nope", "attention_bias": anywhere(files, "attn_q.bias"),
        "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


GRANITE = Architecture(config=_config, layer=LAYER, turned=True)
GRANITEMOE = Architecture(
    config=_mixtures, layer={**LAYER, **_ROUTER, "ffn_down_shexp": "shared_mlp.output_linear"}, experts=_EXPERTS,
    dense=("ffn_gate_inp",), turned=True, special=_shared_expert("_shexp"), aliases=_ALIASES,
)  # fmt: skip
GRANITEHYBRID = Architecture(
    config=_hybrid,
    layer={
        **LAYER, **_ROUTER, **names("mamba"), "ffn_down_shexp": "shared_mlp.output_linear",
        "ffn_down": "shared_mlp.output_linear",
    },
    experts=_EXPERTS, dense=("ffn_gate_inp",), turned=True, uneven=True,
    special={**second("mamba"), **_shared_expert("_shexp"), **_shared_expert("")}, aliases=_ALIASES,
)  # fmt: skip
