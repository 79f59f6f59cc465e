"""Nemotron-H and Nemotron 3: layers of one part each: Mamba-2, attention, an MLP or an MoE."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import Architecture, layers, mixture, scale, with_tensor
from thalweg.checkpoint.gguf.architectures.mamba import LAYERS, WHOLE
from thalweg.checkpoint.gguf.architectures.recurrent import anywhere, names, second
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.errors import CheckpointError

_PARTS = {
    "ssm_in": "mamba", "attn_q": "attention", "ffn_gate_inp": "moe", "ffn_up": "mlp",
}  # fmt: skip
"""A tensor specific to a kind of layer -> the kind."""
_LAYER = {
    "attn_norm": "norm", **names("mixer"), **{f"attn_{part}": f"mixer.{part}_proj" for part in "qkv"},
    "attn_output": "mixer.o_proj", "ffn_up": "mixer.up_proj", "ffn_down": "mixer.down_proj", "ffn_gate_inp": "mixer.gate",
    "exp_probs_b": "mixer.gate.e_score_correction_bias", "ffn_up_shexp": "mixer.shared_experts.up_proj",
    "ffn_down_shexp": "mixer.shared_experts.down_proj", "ffn_latent_down": "mixer.fc1_latent_proj",
    "ffn_latent_up": "mixer.fc2_latent_proj",
}  # fmt: skip


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    inner, heads = keys.integer("ssm.inner_size", low=1), keys.integer("ssm.time_step_rank", low=1)
    settings = {
        "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "layers_block_type": _kinds(keys, files),
        "layer_norm_epsilon": keys.real("attention.layer_norm_rms_epsilon"), "mamba_num_heads": heads,
        "mamba_head_dim": inner // heads, "n_groups": keys.integer("ssm.group_count", low=1),
        "ssm_state_size": keys.integer("ssm.state_size", low=1), "conv_kernel": keys.integer("ssm.conv_kernel", low=2),
        "mamba_hidden_act": "silu", "mlp_hidden_act": "relu2", "use_bias": anywhere(files, "ssm_in.bias"),
        "use_conv_bias": anywhere(files, "ssm_conv1d.bias"), "mlp_bias": anywhere(files, "ffn_up.bias"),
    }  # fmt: skip
    return settings | (_mixtures(keys) if keys.integer("expert_count", default=0) else {})


def _mixtures(keys: Keys) -> dict[str, Any]:
    settings = mixture(keys, "n_routed_experts")
    groups = keys.integer("expert_group_count", default=1, low=1)
    shared = keys.integer("expert_shared_feed_forward_length", default=settings["moe_intermediate_size"], low=1)
    return settings | {
        "moe_shared_expert_intermediate_size": shared, "norm_topk_prob": keys.flag("expert_weights_norm", default=False),
        "routed_scaling_factor": scale(keys), "moe_latent_size": keys.integer("moe_latent_size", default=0), "n_group": groups,
        "topk_group": keys.integer("expert_group_used_count", default=groups, low=1),
    }  # fmt: skip


def _kinds(keys: Keys, files: GGUFFiles) -> list[str]:
    has = {kind: with_tensor(files, keys, f"{name}.weight") for name, kind in _PARTS.items()}
    found = [next((kind for kind in has if has[kind][i]), "") for i in range(layers(keys))]
    if "" in found:
        raise CheckpointError(f"{files.path}: layer {found.index('')} has no tensors of {', '.join(has)}")
    return found


NEMOTRON_H = Architecture(
    config=_config,
    layer=_LAYER,
    experts={f"ffn_{part}_exps": f"mixer.experts.{{}}.{part}_proj" for part in ("up", "down")},
    whole=WHOLE,
    layers=LAYERS,
    dense=("ffn_gate_inp",),
    turned=True,
    bare=("exp_probs_b",),
    uneven=True,
    special=second("mixer"),
)
