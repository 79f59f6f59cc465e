"""BERT and models converted as BERT: all-MiniLM, BGE, E5, RoBERTa and XLM-RoBERTa. The converter removed the rows before the
first position of RoBERTa, so that its positions begin at 0 too."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import Architecture
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.errors import CheckpointError, UnsupportedModelError


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    """Files do not name the activation. All models converted as BERT have the exact GELU."""
    check_encoder(keys, files)
    return {
        "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu",
        "max_position_embeddings": rows_of(files, "position_embd.weight"),
        "type_vocab_size": rows_of(files, "token_types.weight"),
    }  # fmt: skip


def check_encoder(keys: Keys, files: GGUFFiles) -> None:
    """UnsupportedModelError for a classifier or a decoder."""
    if any(name.startswith("cls.") for name in files.tensors):
        raise UnsupportedModelError(
            f"{files.path}: has a head that classifies (cls.*), which this version does not read from GGUF; use the model's "
            "safetensors"
        )
    if keys.flag("attention.causal", default=False):
        raise UnsupportedModelError(f"{files.path}: {keys.prefix}attention.causal: BERT is served as an encoder")


def rows_of(files: GGUFFiles, name: str) -> int:
    """Rows of an embedding. CheckpointError without it."""
    tensor = files.tensors.get(name)
    if tensor is None or len(tensor.shape) != 2:
        raise CheckpointError(f"{files.path}: has no {name}: it is no BERT that this version serves (DistilBERT has no types)")
    return tensor.shape[0]


BERT = Architecture(
    config=_config,
    layer={
        "attn_q": "attention.self.query",
        "attn_k": "attention.self.key",
        "attn_v": "attention.self.value",
        "attn_output": "attention.output.dense",
        "attn_output_norm": "attention.output.LayerNorm",
        "ffn_up": "intermediate.dense",
        "ffn_down": "output.dense",
        "layer_output_norm": "output.LayerNorm",
    },
    whole={
        "token_embd": "embeddings.word_embeddings",
        "position_embd": "embeddings.position_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "embeddings.LayerNorm",
    },
    layers="encoder.layer.{}.{}",
    dense=("position_embd", "token_types"),
    layer_norm=True,
)
