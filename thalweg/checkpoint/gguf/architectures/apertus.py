"""Apertus: QK-norm, and an ungated MLP whose activation (xIELU) has two numbers per layer. Files store these as metadata."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from thalweg.checkpoint.gguf.architectures.common import HEAD_NORMS, LAYER, Architecture, has, head_width, layers, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.header import GGUFTensor
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.checkpoint.gguf.pieces import GGUFPiece
from thalweg.errors import CheckpointError, UnsupportedModelError

_FIXED = {"beta": 0.5, "eps": -1e-6}
"""Parameters of the activation that are equal in every layer of every model."""


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    for name, value in _FIXED.items():
        if not np.allclose(_numbers(files, name, layers(keys), value), value, rtol=5e-3):  # bfloat16 in checkpoints
            raise UnsupportedModelError(f"{files.path}: xielu.{name}: this version reads {value} in every layer")
    return {
        "architectures": ["ApertusForCausalLM"], "model_type": "apertus", "hidden_act": "xielu",
        "attention_bias": has(files, "attn_q.bias", "attn_qkv.bias"), "rope_parameters": rope(keys, files, head_width(keys)),
        "xielu": {name: _numbers(files, name, layers(keys)) for name in ("alpha_p", "alpha_n")},
    }  # fmt: skip


def _numbers(files: GGUFFiles, name: str, count: int, default: float | None = None) -> list[float]:
    """xielu.`name`, one number per layer."""
    found = Keys(files.path, files.metadata).numbers(f"xielu.{name}", "f")
    if found is None and default is not None:
        return [default] * count
    if found is None or len(found) != count or not np.isfinite(found).all():
        raise CheckpointError(f"{files.path}: xielu.{name}: must be a finite number for each of the {count} layers")
    return [float(value) for value in found]


def _norm_and_activation(tensor: GGUFTensor, config: Mapping[str, Any]) -> list[tuple[str, GGUFPiece]]:
    """The norm before the MLP, and the activation's numbers of this layer. These have no tensor in the file."""
    layer = int(tensor.name.split(".")[1])
    if layer >= config["num_hidden_layers"]:
        return []
    numbers = [
        (
            f"mlp.act_fn.{name}",
            GGUFPiece(tensor.name, (1,), value=partial(np.full_like, fill_value=config["xielu"][name][layer])),
        )
        for name in ("alpha_p", "alpha_n")
    ]
    return [("feedforward_layernorm.weight", GGUFPiece(tensor.name, tensor.shape)), *numbers]


APERTUS = Architecture(
    config=_config,
    layer={**LAYER, **HEAD_NORMS, "attn_norm": "attention_layernorm"},
    special={"ffn_norm.weight": _norm_and_activation},
)
