"""Falcon-H1. The converter multiplied its multipliers into the weights."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, WHOLE, Architecture, head_width, rename, rope
from thalweg.checkpoint.gguf.architectures.recurrent import anywhere, names, second, sizes
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys

_FEED_FORWARD = {f"ffn_{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")}


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {
        "architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", "hidden_act": "silu", **sizes(keys, files),
        "mamba_d_ssm": keys.integer("ssm.inner_size", low=1), "mamba_rms_norm": anywhere(files, "ssm_norm.weight"),
        "mamba_norm_before_gate": False, "attention_bias": anywhere(files, "attn_q.bias"),
        "mlp_bias": anywhere(files, "ffn_up.bias"), "projectors_bias": anywhere(files, "ssm_out.bias"),
        "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


FALCON_H1 = Architecture(
    config=_config,
    layer={**LAYER, **names("mamba"), **_FEED_FORWARD, "ffn_norm": "pre_ff_layernorm"},
    whole={**WHOLE, "output_norm": "model.final_layernorm"},
    special={**second("mamba"), "ffn_norm": rename("pre_ff_layernorm.weight")},
)
