"""HunYuan-A13B: the dense model's attention, a softmax router, a shared expert."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.gguf.architectures.common import EXPERTS, mixture
from thalweg.checkpoint.gguf.architectures.hunyuan import HUNYUAN_DENSE
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    experts = mixture(keys)
    return HUNYUAN_DENSE.config(keys, files) | {
        "architectures": ["HunYuanMoEV1ForCausalLM"], "model_type": "hunyuan_v1_moe",
        "moe_topk": experts.pop("num_experts_per_tok"), **experts,
        "num_shared_expert": keys.integer("expert_shared_count", default=1, low=1),
    }  # fmt: skip


HUNYUAN_MOE = replace(
    HUNYUAN_DENSE,
    config=_config,
    layer={
        **HUNYUAN_DENSE.layer, "ffn_gate_inp": "mlp.gate.wg",
        **{f"ffn_{part}_shexp": f"mlp.shared_mlp.{part}_proj" for part in ("gate", "up", "down")},
    },
    experts=EXPERTS,
    dense=("ffn_gate_inp",),
)  # fmt: skip
