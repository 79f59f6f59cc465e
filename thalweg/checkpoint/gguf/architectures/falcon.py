"""Falcon 7B, 40B, 180B and Falcon 2: attention and MLP are parallel, after one norm or two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thalweg.checkpoint.gguf.architectures.common import Architecture, Make, head_width, inner, rope
from thalweg.checkpoint.gguf.architectures.gptneox import together
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.header import GGUFTensor
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.checkpoint.gguf.pieces import GGUFPiece

_WHOLE = {"token_embd": "transformer.word_embeddings", "output_norm": "transformer.ln_f", "output": "lm_head"}


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    kv = keys.integer("attention.head_count_kv", default=1, low=1)
    two = "blk.0.attn_norm_2.weight" in files.tensors
    return {
        "architectures": ["FalconForCausalLM"], "model_type": "falcon", "activation": "gelu", "alibi": False, "bias": False,
        "new_decoder_architecture": kv > 1, "multi_query": kv == 1, "num_kv_heads": kv, "parallel_attn": True,
        "num_ln_in_parallel_attn": 2 if two else 1, "ffn_hidden_size": inner(files),
        "layer_norm_epsilon": keys.real("attention.layer_norm_epsilon"), "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


def _norm(kind: str) -> Make:
    def make(tensor: GGUFTensor, config: Mapping[str, Any]) -> Sequence[tuple[str, GGUFPiece]]:
        name = "ln_mlp" if config["num_ln_in_parallel_attn"] == 2 else "input_layernorm"
        return [(f"{name}.{kind}", GGUFPiece(tensor.name, tensor.shape))]

    return make


FALCON = Architecture(
    config=_config,
    layer={
        "attn_norm_2": "ln_attn", "attn_output": "self_attention.dense", "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    },
    whole=_WHOLE, layers="transformer.h.{}.{}", layer_norm=True,
    special={
        "attn_qkv.weight": together("self_attention.query_key_value.weight"), "attn_norm.weight": _norm("weight"),
        "attn_norm.bias": _norm("bias"),
    },
)  # fmt: skip
