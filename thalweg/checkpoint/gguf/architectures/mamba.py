"""Mamba and FalconMamba: selective scans only."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import Architecture
from thalweg.checkpoint.gguf.architectures.recurrent import anywhere, first, names
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys

NAMES = {"attn_norm": "norm", **names("mixer")}
WHOLE = {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"}
LAYERS = "backbone.layers.{}.{}"


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    normed = keys.flag("ssm.dt_b_c_rms", default=False)
    kind = {"architectures": ["MambaForCausalLM"], "model_type": "mamba"}
    if normed:
        kind = {"architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba"}
    return kind | {
        "hidden_act": "silu", "layer_norm_epsilon": keys.real("attention.layer_norm_rms_epsilon"),
        "intermediate_size": keys.integer("ssm.inner_size", low=1), "state_size": keys.integer("ssm.state_size", low=1),
        "time_step_rank": keys.integer("ssm.time_step_rank", low=1), "conv_kernel": keys.integer("ssm.conv_kernel", low=2),
        "use_conv_bias": anywhere(files, "ssm_conv1d.bias"), "use_bias": anywhere(files, "ssm_in.bias"),
    }  # fmt: skip


MAMBA = Architecture(
    config=_config, layer=NAMES, whole=WHOLE, layers=LAYERS, attends=False, special=first("mixer"), dense=("ssm_x", "ssm_dt"),
)  # fmt: skip
