"""Nomic BERT: nomic-embed-text v1 and v1.5. Files name neither the activation nor the absent biases."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.bert import check_encoder, rows_of
from thalweg.checkpoint.gguf.architectures.common import Architecture, head_width, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    check_encoder(keys, files)
    return {
        "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "hidden_act": "silu",
        "type_vocab_size": rows_of(files, "token_types.weight"), "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


NOMIC_BERT = Architecture(
    config=_config,
    layer={
        "attn_qkv": "attn.Wqkv",
        "attn_output": "attn.out_proj",
        "attn_output_norm": "norm1",
        "ffn_up": "mlp.fc11",
        "ffn_gate": "mlp.fc12",
        "ffn_down": "mlp.fc2",
        "layer_output_norm": "norm2",
    },
    whole={
        "token_embd": "embeddings.word_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "emb_ln",
    },
    layers="encoder.layers.{}.{}",
    dense=("token_types",),
    layer_norm=True,
)
