"""StableLM 2 and 3B. Models whose layers have no second norm compute attention and MLP in parallel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, Make, has, head_width, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.header import GGUFTensor
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.checkpoint.gguf.pieces import GGUFPiece


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {
        "architectures": ["StableLmForCausalLM"], "model_type": "stablelm", "hidden_act": "silu",
        "use_qkv_bias": has(files, "attn_q.bias", "attn_qkv.bias"), "use_parallel_residual": not has(files, "ffn_norm.weight"),
        "qk_layernorm": has(files, "attn_q_norm.weight"),
        "rope_parameters": {"partial_rotary_factor": 1.0, **rope(keys, files, head_width(keys))},
    }  # fmt: skip


def _head_norms(name: str) -> Make:
    """The norms of all heads, stored in one tensor [heads, width of a head]."""

    def split(tensor: GGUFTensor, config: Mapping[str, Any]) -> list[tuple[str, GGUFPiece]]:
        return [(f"{name}.norms.{h}.weight", GGUFPiece(tensor.name, tensor.shape[1:], h)) for h in range(tensor.shape[0])]

    return split


STABLELM = Architecture(
    config=_config,
    layer=LAYER,
    layer_norm=True,
    special={
        "attn_q_norm.weight": _head_norms("self_attn.q_layernorm"),
        "attn_k_norm.weight": _head_norms("self_attn.k_layernorm"),
    },
)
