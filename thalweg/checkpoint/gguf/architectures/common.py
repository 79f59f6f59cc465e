"""What architectures have in common: the row of the table, names, and the keys that all of them use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from thalweg.checkpoint.gguf.files import Files
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.errors import CheckpointError, UnsupportedModelError

WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
"""Tensors outside layers."""
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Those of Llama's layers."""
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
LAYERS = "model.layers.{}.{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """config: keys and files -> what config.json would say of this architecture alone; `configuration` adds what all have."""

    config: Callable[[Keys, Files], dict[str, Any]]
    layer: Mapping[str, str]
    """Names of tensors in a layer, and those that transformers has, relative to the layer."""
    experts: Mapping[str, str] | None = None
    """The same of tensors that hold a matrix for each expert; {} is its number."""
    whole: Mapping[str, str] = field(default_factory=lambda: WHOLE)
    """The same of tensors outside layers."""
    layers: str = LAYERS
    """What stands before a layer's names; {} are the layer and its part."""
    dense: tuple[str, ...] = ()
    """Tensors that are never held in codes."""
    layer_norm: bool = False
    """Norms subtract the mean: their epsilon has another key."""
    turned: bool = False
    """The converter wrote the rows of q and k so that the two values that turn together lie side by side."""
    raised: bool = False
    """The converter added 1 to the weights of norms."""
    by_head: Mapping[str, bool] = field(default_factory=dict)
    """Tensors that hold a matrix for each head, and whether it lies on its side."""
    bare: tuple[str, ...] = ()
    """Tensors whose name in transformers has no further end."""
    latent: bool = False
    """Keys and values are made of latents, and `config` says how long they are."""


def configuration(keys: Keys, files: Files, layer_norm: bool = False, latent: bool = False) -> dict[str, Any]:
    """The part of config.json that every architecture has."""
    heads = keys.integer("attention.head_count", low=1)
    hidden = keys.integer("embedding_length", low=1)
    head_dim = keys.integer("attention.key_length", default=hidden // heads, low=1)
    if not latent and keys.integer("attention.value_length", default=head_dim, low=1) != head_dim:
        raise UnsupportedModelError(f"{files.path}: {keys.prefix}attention.value_length: values as long as keys are read")
    table = files.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise CheckpointError(f"{files.path}: has no token_embd.weight, the embedding: it is no language model")
    return {
        "num_hidden_layers": layers(keys),
        "hidden_size": hidden,
        "intermediate_size": keys.integer("feed_forward_length", low=0),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", default=heads, low=1),
        "head_dim": head_dim,
        "max_position_embeddings": keys.integer("context_length", low=1),
        "layer_norm_eps" if layer_norm else "rms_norm_eps": keys.real(
            "attention.layer_norm_epsilon" if layer_norm else "attention.layer_norm_rms_epsilon"
        ),
        "vocab_size": table.shape[0],
        "tie_word_embeddings": "output.weight" not in files.tensors,
    }


def layers(keys: Keys) -> int:
    """Those that predict further tokens, at the end, are left out."""
    return keys.integer("block_count", low=1, high=10_000) - keys.integer("nextn_predict_layers", default=0)


def rope(keys: Keys, files: Files, head_dim: int) -> dict[str, Any]:
    """`rope_parameters`. Where a file says nothing, llama.cpp's own values stand."""
    made: dict[str, Any] = {"rope_theta": keys.real("rope.freq_base", default=10_000.0), "rope_type": "default"}
    turning = keys.integer("rope.dimension_count", default=head_dim, low=2)
    if "rope.dimension_count" in keys:
        made["partial_rotary_factor"] = turning / head_dim
    if "rope_freqs.weight" in files.tensors:
        return made | _by_factors(files, made["rope_theta"], turning)
    kind = keys.text("rope.scaling.type", default="linear" if "rope.scale_linear" in keys else "none")
    factor = keys.real("rope.scaling.factor", default=keys.real("rope.scale_linear", default=1.0))
    if kind in ("none", "") or (kind == "linear" and factor in (0.0, 1.0)):
        return made
    if kind == "linear":
        return made | {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return made | _yarn(keys, factor)
    raise UnsupportedModelError(f"{files.path}: {keys.prefix}rope.scaling.type: {kind!r:.40} is not read by this version")


def _yarn(keys: Keys, factor: float) -> dict[str, Any]:
    trained = keys.integer("context_length", low=1)
    made: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": keys.integer("rope.scaling.original_context_length", default=trained, low=1),
    }
    for ours, theirs in (
        ("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow"), ("attention_factor", "yarn_attn_factor")
    ):  # fmt: skip
        if f"rope.scaling.{theirs}" in keys:
            made[ours] = keys.real(f"rope.scaling.{theirs}")
    return made


def _by_factors(files: Files, theta: float, turning: int) -> dict[str, Any]:
    """Frequencies divided one by one. The tensor is how Llama 3.1's scaling is written: where its numbers can be found again
    the scaling is told by them, and else as the list that it is."""
    tensor = files.tensors["rope_freqs.weight"]
    if tensor.type.name != "F32" or tensor.shape != (turning // 2,):
        raise CheckpointError(f"{files.path}: rope_freqs.weight must hold {turning // 2} values in F32")
    factors = files.read("rope_freqs.weight")
    if not np.isfinite(factors).all() or (factors <= 0).any():
        raise CheckpointError(f"{files.path}: rope_freqs.weight must hold positive numbers")
    factor = float(factors[-1])
    for original in (8192, 4096, 2048, 16384, 32768, 65536, 131072):
        if np.allclose(factors, _llama3(theta, turning, factor, original), rtol=1e-5):
            return {
                "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": original,
            }  # fmt: skip
    listed = [float(f) for f in factors]
    return {"rope_type": "longrope", "short_factor": listed, "long_factor": listed, "attention_factor": 1.0, "factor": 1.0}


def _llama3(theta: float, dim: int, factor: float, original: int, low: float = 1.0, high: float = 4.0) -> np.ndarray:
    """What frequencies are divided by: 1 for short wavelengths, the factor for long ones (Llama 3.1)."""
    wavelength = 2 * np.pi * theta ** (np.arange(0, dim, 2) / dim)
    smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)


def has(files: Files, *names: str) -> bool:
    """Has the first layer one of these tensors?"""
    return any(f"blk.0.{name}" in files.tensors for name in names)
