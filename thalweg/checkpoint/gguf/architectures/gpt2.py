"""GPT-2, with learned positions. Transformers has transposed matrices. Here they have the files' orientation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thalweg.checkpoint.gguf.architectures.common import Architecture, Make, inner, rename
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.header import GGUFTensor
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.checkpoint.gguf.pieces import GGUFPiece

_WHOLE = {
    "token_embd": "transformer.wte", "position_embd": "transformer.wpe", "output_norm": "transformer.ln_f", "output": "lm_head",
}  # fmt: skip


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "n_inner": inner(files),
        "layer_norm_epsilon": keys.real("attention.layer_norm_epsilon"),
    }  # fmt: skip


def _thirds(tensor: GGUFTensor, config: Mapping[str, Any]) -> Sequence[tuple[str, GGUFPiece]]:
    hidden = config["hidden_size"]
    shape = (hidden, *tensor.shape[1:])
    return [(f"attn.{part}_proj.weight.T", GGUFPiece(tensor.name, shape, first=i * hidden)) for i, part in enumerate("qkv")]


_SPECIAL: dict[str, Make] = {
    "attn_qkv.weight": _thirds, "attn_qkv.bias": rename("attn.c_attn.bias"),
    "attn_output.weight": rename("attn.c_proj.weight.T"), "ffn_up.weight": rename("mlp.c_fc.weight.T"),
    "ffn_down.weight": rename("mlp.c_proj.weight.T"),
}  # fmt: skip

GPT2 = Architecture(
    config=_config,
    layer={
        "attn_norm": "ln_1",
        "ffn_norm": "ln_2",
        "attn_output": "attn.c_proj",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    },
    whole=_WHOLE,
    layers="transformer.h.{}.{}",
    layer_norm=True,
    dense=("position_embd", "attn_qkv", "attn_output", "ffn_up", "ffn_down"),
    special=_SPECIAL,
)
