"""Qwen3-Next, Qwen3.5 and its MoE variants: gated delta nets. Decay rates are stored as -exp(A_log). Value heads of Qwen3.5
have another order where they outnumber key heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from thalweg.checkpoint.gguf.architectures.common import (
    EXPERTS,
    HEAD_NORMS,
    LAYER,
    Architecture,
    Make,
    conv1d_weight,
    flatten,
    head_width,
    mixture,
    rename,
    rope,
    row,
    with_tensor,
)
from thalweg.checkpoint.gguf.architectures.qwen2moe import SHARED
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.header import GGUFTensor
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.checkpoint.gguf.pieces import GGUFPiece, Tiles, logarithm, tile

_LAYER = {
    **LAYER, **HEAD_NORMS, **SHARED, "ffn_gate_inp": "mlp.gate",
    "post_attention_norm": "post_attention_layernorm", "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z", "ssm_beta": "linear_attn.in_proj_b", "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_norm": "linear_attn.norm", "ssm_out": "linear_attn.out_proj",
}  # fmt: skip
_SPECIAL = {
    "ffn_gate_inp_shexp.weight": row("mlp.shared_expert_gate.weight"),
    "ssm_conv1d.weight": conv1d_weight("linear_attn.conv1d.weight"),
    "ssm_a": flatten("linear_attn.A_log", logarithm), "ssm_dt.bias": rename("linear_attn.dt_bias"),
}  # fmt: skip
_DENSE = ("ffn_gate_inp", "ffn_gate_inp_shexp", "ssm_alpha", "ssm_beta", "ssm_ba")


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    """Configuration of the text part: text has equal positions on all axes of M-RoPE."""
    inner, heads = keys.integer("ssm.inner_size", low=1), keys.integer("ssm.time_step_rank", low=1)
    recurrent = with_tensor(files, keys, "ssm_conv1d.weight")
    return {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_act": "silu",
        "layer_types": ["linear_attention" if each else "full_attention" for each in recurrent],
        "linear_conv_kernel_dim": keys.integer("ssm.conv_kernel", low=2),
        "linear_key_head_dim": keys.integer("ssm.state_size", low=1), "linear_value_head_dim": inner // heads,
        "linear_num_key_heads": keys.integer("ssm.group_count", low=1), "linear_num_value_heads": heads,
        "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


def _mixtures(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    """llama.cpp always normalises the routing weights of the selected experts."""
    settings = mixture(keys)
    shared = keys.integer("expert_shared_feed_forward_length", default=settings["moe_intermediate_size"], low=1)
    return _config(keys, files) | settings | {
        "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "shared_expert_intermediate_size": shared,
    }  # fmt: skip


def _next(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    """The first files have joint projections, like Qwen3-Next itself. Later files have separate ones, like Qwen3.5."""
    result = _mixtures(keys, files)
    if any(name.endswith(".ssm_in.weight") for name in files.tensors):
        result |= {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "decoder_sparse_step": 1}
    return result


def _tiles(config: Mapping[str, Any]) -> Tiles:
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    return keys, values // keys, config["linear_value_head_dim"]


def _rows(name: str, width: int = 0, part: str = "") -> Make:
    """Rows of value heads. width: rows of one head, or 0 for the configuration's. part: "v" = rows of q and k come first."""

    def make(tensor: GGUFTensor, config: Mapping[str, Any]) -> Sequence[tuple[str, GGUFPiece]]:
        heads, each, size = _tiles(config)
        tiles = heads, each, width or size
        first = 2 * heads * config["linear_key_head_dim"] if part == "v" else 0
        shape = (tensor.shape[0], 1, tensor.shape[-1]) if "conv" in name else tensor.shape
        value = logarithm if name.endswith("A_log") else None
        fits = first + tiles[0] * tiles[1] * tiles[2] == tensor.shape[0]
        return (
            [(name, GGUFPiece(tensor.name, shape, order=tile(tiles, first) if each > 1 else None, value=value))] if fits else []
        )

    return make


def _columns(tensor: GGUFTensor, config: Mapping[str, Any]) -> Sequence[tuple[str, GGUFPiece]]:
    tiles = _tiles(config)
    return [("linear_attn.out_proj.weight", GGUFPiece(tensor.name, tensor.shape, tiles=tiles if tiles[1] > 1 else None))]


def _apart(tensor: GGUFTensor, config: Mapping[str, Any]) -> Sequence[tuple[str, GGUFPiece]]:
    """Splits rows grouped by key head: b of its value heads, then a."""
    if config["model_type"] == "qwen3_next":
        return [("linear_attn.in_proj_ba.weight", GGUFPiece(tensor.name, tensor.shape))]
    heads, each, _ = _tiles(config)
    if len(tensor.shape) != 2 or tensor.shape[0] != 2 * heads * each:
        return []
    shape = (heads * each, tensor.shape[-1])
    return [
        (f"linear_attn.in_proj_{part}.weight", GGUFPiece(tensor.name, shape, order=partial(_every, heads, each, at)))
        for at, part in enumerate("ba")
    ]  # fmt: skip


def _every(heads: int, each: int, at: int) -> np.ndarray:
    found: np.ndarray = np.arange(2 * heads * each).reshape(heads, 2, each)[:, at].reshape(-1)
    return found


_REORDERED: Mapping[str, Make] = {
    "attn_qkv.weight": _rows("linear_attn.in_proj_qkv.weight", part="v"),
    "attn_gate.weight": _rows("linear_attn.in_proj_z.weight"),
    "ssm_beta.weight": _rows("linear_attn.in_proj_b.weight", 1),
    "ssm_alpha.weight": _rows("linear_attn.in_proj_a.weight", 1),
    "ssm_a": _rows("linear_attn.A_log", 1), "ssm_dt.bias": _rows("linear_attn.dt_bias", 1),
    "ssm_conv1d.weight": _rows("linear_attn.conv1d.weight", part="v"), "ssm_out.weight": _columns,
}  # fmt: skip
_COMMON: Mapping[str, Any] = {"layer": _LAYER, "raised": True, "plain": ("ssm_norm",), "dense": _DENSE}

QWEN3NEXT = Architecture(
    config=_next, experts=EXPERTS, special={**_SPECIAL, "ssm_in.weight": rename("linear_attn.in_proj_qkvz.weight"),
    "ssm_ba.weight": _apart}, **_COMMON,
)  # fmt: skip
QWEN35 = Architecture(config=_config, special={**_SPECIAL, **_REORDERED}, **_COMMON)
QWEN35MOE = Architecture(config=_mixtures, experts=EXPERTS, special={**_SPECIAL, **_REORDERED}, **_COMMON)
