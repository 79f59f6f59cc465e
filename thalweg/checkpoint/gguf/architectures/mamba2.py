"""Mamba-2 and Codestral Mamba: state-space duality only."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import Architecture
from thalweg.checkpoint.gguf.architectures.mamba import LAYERS, NAMES, WHOLE
from thalweg.checkpoint.gguf.architectures.recurrent import anywhere, second
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    inner, heads = keys.integer("ssm.inner_size", low=1), keys.integer("ssm.time_step_rank", low=1)
    return {
        "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "hidden_act": "silu",
        "layer_norm_epsilon": keys.real("attention.layer_norm_rms_epsilon"), "num_heads": heads, "head_dim": inner // heads,
        "expand": inner / keys.integer("embedding_length", low=1), "n_groups": keys.integer("ssm.group_count", low=1),
        "state_size": keys.integer("ssm.state_size", low=1), "conv_kernel": keys.integer("ssm.conv_kernel", low=2),
        "use_conv_bias": anywhere(files, "ssm_conv1d.bias"), "use_bias": anywhere(files, "ssm_in.bias"),
    }  # fmt: skip


MAMBA2 = Architecture(
    config=_config, layer=NAMES, whole=WHOLE, layers=LAYERS, attends=False, special=second("mixer"),
)  # fmt: skip
