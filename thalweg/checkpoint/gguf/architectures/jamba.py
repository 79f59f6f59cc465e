"""Jamba: Mamba layers with inner norms, attention with NoPE, and MoE on some layers."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, WHOLE, Architecture
from thalweg.checkpoint.gguf.architectures.recurrent import anywhere, first, names, period
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys

_NORMS = {f"ssm_{part}_norm": f"mamba.{part}_layernorm" for part in ("dt", "b", "c")}
_FEED_FORWARD = {f"ffn_{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")}


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    attends, mixed = period(keys, files, "attn_q.weight"), period(keys, files, "ffn_gate_inp.weight")
    experts = keys.integer("expert_count", default=0)
    return {
        "architectures": ["JambaForCausalLM"], "model_type": "jamba", "hidden_act": "silu",
        "mamba_expand": keys.integer("ssm.inner_size", low=1) / keys.integer("embedding_length", low=1),
        "mamba_d_state": keys.integer("ssm.state_size", low=1), "mamba_d_conv": keys.integer("ssm.conv_kernel", low=2),
        "mamba_dt_rank": keys.integer("ssm.time_step_rank", low=1),
        "mamba_conv_bias": anywhere(files, "ssm_conv1d.bias"), "mamba_proj_bias": anywhere(files, "ssm_in.bias"),
        "attn_layer_period": attends[0], "attn_layer_offset": attends[1],
        "expert_layer_period": mixed[0], "expert_layer_offset": mixed[1], "num_experts": max(1, experts),
        "num_experts_per_tok": keys.integer("expert_used_count", default=1, low=1),
    }  # fmt: skip


JAMBA = Architecture(
    config=_config,
    layer={
        **LAYER, **names("mamba"), **_NORMS, **_FEED_FORWARD, "ffn_norm": "pre_ff_layernorm",
        "ffn_gate_inp": "feed_forward.router",
    },
    experts={f"ffn_{part}_exps": f"feed_forward.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")},
    whole={**WHOLE, "output_norm": "model.final_layernorm"},
    dense=("ffn_gate_inp", "ssm_x", "ssm_dt"),
    uneven=True,
    special=first("mamba"),
)  # fmt: skip
