"""Shared by the architectures: the row of the table, tensor names, and common keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.header import GGUFTensor
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.checkpoint.gguf.pieces import PART, GGUFPiece
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
"""Tensors of Llama's layers."""
EXPERTS = {f"ffn_{part}_exps": f"mlp.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")}
"""Tensors of an expert, by their most common names."""
NEXTN = {
    "nextn.eh_proj": "eh_proj", "nextn.enorm": "enorm", "nextn.hnorm": "hnorm", "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_head": "shared_head.head", "nextn.shared_head_norm": "shared_head.norm",
}  # fmt: skip
"""Tensors of a layer that predicts further tokens."""
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
AROUND = {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
"""Norms before and after each part, as in Gemma."""
LAYERS = "model.layers.{}.{}"
FULL, WINDOWED = "full_attention", "sliding_attention"
"""Values of `layer_types`."""
SOFTMAX, SIGMOID = 1, 2
"""Values of `expert_gating_func`."""
Make = Callable[[GGUFTensor, Mapping[str, Any]], Sequence[tuple[str, GGUFPiece]]]
"""(tensor, configuration) -> transformers' tensors for it: (whole name within the layer, piece)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """config: (keys, files) -> the keys of config.json specific to this architecture. `configuration` adds the common ones."""

    config: Callable[[Keys, GGUFFiles], dict[str, Any]]
    layer: Mapping[str, str]
    """Name of a tensor in a layer -> transformers' name, relative to the layer."""
    experts: Mapping[str, str] | None = None
    """The same for tensors with a matrix per expert. {} is the expert's number."""
    whole: Mapping[str, str] = field(default_factory=lambda: WHOLE)
    """The same for tensors outside layers."""
    layers: str = LAYERS
    """Format of a whole name: {} are the number of the layer and the name within it."""
    dense: tuple[str, ...] = ()
    """Tensors always stored dense."""
    layer_norm: bool = False
    """Norms subtract the mean. Their epsilon has another key."""
    turned: bool = False
    """The converter interleaved the rows of q and k: the two values of a rotated pair are adjacent."""
    raised: bool = False
    """The converter added 1 to the norms' weights."""
    plain: tuple[str, ...] = ()
    """Norms without the added 1."""
    by_head: Mapping[str, bool] = field(default_factory=dict)
    """Tensor with a matrix per head -> is the matrix transposed?"""
    bare: tuple[str, ...] = ()
    """Tensors without a suffix (weight, bias) in transformers' name."""
    latent: bool = False
    """Keys and values are computed from latents, and `config` sets their widths."""
    uneven: bool = False
    """Layers differ in numbers of heads and in widths. The configuration has the largest."""
    attends: bool = True
    """The architecture has attention."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Parts of names in checkpoints -> parts of names in the model."""
    module: Mapping[str, str] = field(default_factory=dict)
    """As `layer`, for more tensors of a layer that predicts further tokens (MTP), if the configuration counts it. Otherwise
    such layers are left out."""
    special: Mapping[str, Make] = field(default_factory=dict)
    """End of a tensor's name -> its conversion, where that is more than a new name."""


def configuration(keys: Keys, files: GGUFFiles, architecture: Architecture) -> dict[str, Any]:
    """The keys of config.json common to every architecture."""
    hidden = keys.integer("embedding_length", low=1)
    table = files.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise CheckpointError(f"{files.path}: has no token_embd.weight, the embedding: it is no language model")
    normed = "layer_norm" if architecture.layer_norm else "layer_norm_rms"
    return {
        "num_hidden_layers": layers(keys), "hidden_size": hidden,
        "intermediate_size": most(keys, "feed_forward_length", architecture.uneven, _width(keys)),
        **(_heads(keys, files, architecture) if architecture.attends else {}),
        "max_position_embeddings": keys.integer("context_length", low=1),
        "layer_norm_eps" if architecture.layer_norm else "rms_norm_eps": keys.real(f"attention.{normed}_epsilon"),
        "vocab_size": table.shape[0], "tie_word_embeddings": "output.weight" not in files.tensors,
    }  # fmt: skip


def _heads(keys: Keys, files: GGUFFiles, architecture: Architecture) -> dict[str, Any]:
    heads = most(keys, "attention.head_count", architecture.uneven, low=1)
    head_dim = _width_of(keys, heads)
    if not architecture.latent and keys.integer("attention.value_length", default=head_dim, low=1) != head_dim:
        raise UnsupportedModelError(f"{files.path}: {keys.prefix}attention.value_length: values as long as keys are read")
    kv = most(keys, "attention.head_count_kv", architecture.uneven, default=heads, low=1)
    return {"num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": head_dim}


def _width(keys: Keys) -> int | None:
    """Default of `feed_forward_length`: 0 if experts replace it in all layers. None: the key is required."""
    return 0 if "expert_feed_forward_length" in keys else None


def most(keys: Keys, name: str, uneven: bool, default: int | None = None, low: int = 0) -> int:
    """A number common to all layers, or the largest if layers may differ (`uneven`)."""
    if not uneven:
        return keys.integer(name, default=default, low=low)
    found = max(keys.each(name, layers(keys), default))
    if found < low:
        raise CheckpointError(f"{keys.path}: {keys.prefix}{name}: must be at least {low} in some layer")
    return found


def head_width(keys: Keys) -> int:
    """Width of one head."""
    return _width_of(keys, keys.integer("attention.head_count", low=1))


def _width_of(keys: Keys, heads: int) -> int:
    found = keys.integer("attention.key_length", default=keys.integer("embedding_length", low=1) // heads, low=1)
    if not found:
        raise CheckpointError(
            f"{keys.path}: {keys.prefix}attention.head_count: {heads} heads are more than the values they share"
        )
    return found


def layer_types(keys: Keys, every: int) -> list[str]:
    """The type of each layer, with or without a window, from `attention.sliding_window_pattern`. every: the default period. The
    last layer of each period has no window."""
    name, count = "attention.sliding_window_pattern", layers(keys)
    value = keys.metadata.get(keys.prefix + name)
    if isinstance(value, np.ndarray):
        if len(value) < count:
            raise CheckpointError(f"{keys.path}: {keys.prefix}{name}: says nothing of some of the {count} layers")
        return [WINDOWED if windowed else FULL for windowed in value[:count]]
    every = keys.integer(name, default=every, low=1)
    return [FULL if (i + 1) % every == 0 else WINDOWED for i in range(count)]


def rename(name: str) -> Make:
    """A tensor with this whole name."""
    return lambda tensor, config: [(name, GGUFPiece(tensor.name, tensor.shape))]


def flatten(name: str, value: Callable[[np.ndarray], np.ndarray] | None = None) -> Make:
    """Values in one dimension, stored in two."""
    return lambda tensor, config: [(name, GGUFPiece(tensor.name, (int(np.prod(tensor.shape)),), value=value))]


def conv1d_weight(name: str) -> Make:
    """[channels, 1, taps], stored without the middle dimension."""
    return lambda tensor, config: [(name, GGUFPiece(tensor.name, (tensor.shape[0], 1, tensor.shape[-1])))]


def row(name: str) -> Make:
    """A matrix of one row, possibly stored as a vector."""
    return lambda tensor, config: [(name, GGUFPiece(tensor.name, (1, int(np.prod(tensor.shape)))))]


def join_part(name: str, part: int) -> Make:
    """Some rows of a tensor that files split into several. part: the position of these rows."""
    return lambda tensor, config: [(f"{name}{PART}{part}", GGUFPiece(tensor.name, tensor.shape))]


def with_tensor(files: GGUFFiles, keys: Keys, name: str) -> list[bool]:
    """For each layer: does it have this tensor?"""
    return [f"blk.{i}.{name}" in files.tensors for i in range(layers(keys))]


def gating(keys: Keys, default: int, known: tuple[int, ...]) -> int:
    """`expert_gating_func`: the router's function. UnsupportedModelError if it is not in `known`."""
    found = keys.integer("expert_gating_func", default=0) or default
    if found not in known:
        names = {SOFTMAX: "softmax", SIGMOID: "sigmoid"}
        raise UnsupportedModelError(
            f"{keys.path}: {keys.prefix}expert_gating_func: {found} is not read by this version, which reads "
            + " and ".join(f"{kind} ({names[kind]})" for kind in known)
        )
    return found


def layers(keys: Keys) -> int:
    """Number of layers, without the last ones that predict further tokens (MTP)."""
    return keys.integer("block_count", low=1, high=10_000) - keys.integer("nextn_predict_layers", default=0)


def rope(keys: Keys, files: GGUFFiles, head_dim: int) -> dict[str, Any]:
    """`rope_parameters`. Defaults are those of llama.cpp."""
    result: dict[str, Any] = {"rope_theta": keys.real("rope.freq_base", default=10_000.0), "rope_type": "default"}
    turning = keys.integer("rope.dimension_count", default=head_dim, low=2)
    if "rope.dimension_count" in keys:
        result["partial_rotary_factor"] = turning / head_dim
    if "rope_factors_long.weight" in files.tensors:
        return result | _long(keys, files, turning)
    if "rope_freqs.weight" in files.tensors:
        return result | _by_factors(files, result["rope_theta"], turning)
    kind = keys.text("rope.scaling.type", default="linear" if "rope.scale_linear" in keys else "none")
    factor = keys.real("rope.scaling.factor", default=keys.real("rope.scale_linear", default=1.0))
    if kind in ("none", "") or (kind == "linear" and factor in (0.0, 1.0)):
        return result
    if kind == "linear":
        return result | {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return result | _yarn(keys, factor)
    raise UnsupportedModelError(f"{files.path}: {keys.prefix}rope.scaling.type: {kind!r:.40} is not read by this version")


def _yarn(keys: Keys, factor: float) -> dict[str, Any]:
    trained = keys.integer("context_length", low=1)
    result: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": keys.integer("rope.scaling.original_context_length", default=trained, low=1),
    }
    if "rope.scaling.yarn_log_multiplier" in keys:
        every = keys.real("rope.scaling.yarn_log_multiplier")
        result["attention_factor"] = _magnitude(factor, 1.0) / _magnitude(factor, every)
    for ours, theirs in (
        ("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow"), ("attention_factor", "yarn_attn_factor")
    ):  # fmt: skip
        if f"rope.scaling.{theirs}" in keys:
            result[ours] = keys.real(f"rope.scaling.{theirs}")
    if "rope.scaling.attn_factor" in keys:
        result["attention_factor"] = result.get("attention_factor", _magnitude(factor, 1.0)) * keys.real(
            "rope.scaling.attn_factor"
        )
    return result


def _magnitude(factor: float, by: float) -> float:
    """YaRN's attention factor."""
    return 0.1 * by * math.log(factor) + 1 if factor > 1 else 1.0


def _long(keys: Keys, files: GGUFFiles, turning: int) -> dict[str, Any]:
    """LongRoPE: frequencies have individual divisors, and others for long texts (Phi)."""
    trained = keys.integer("context_length", low=1)
    result: dict[str, Any] = {
        "rope_type": "longrope",
        "original_max_position_embeddings": keys.integer("rope.scaling.original_context_length", default=trained, low=1),
    }
    for length in ("short", "long"):
        result[f"{length}_factor"] = [float(f) for f in _factors(files, f"rope_factors_{length}.weight", turning)]
    if "rope.scaling.attn_factor" in keys:
        result["attention_factor"] = keys.real("rope.scaling.attn_factor")
    return result


def _factors(files: GGUFFiles, name: str, turning: int) -> np.ndarray:
    tensor = files.tensors.get(name)
    if tensor is None or tensor.type.name != "F32" or tensor.shape != (turning // 2,):
        raise CheckpointError(f"{files.path}: {name} must hold {turning // 2} values in F32")
    factors = files.read(name)
    if not np.isfinite(factors).all() or (factors <= 0).any():
        raise CheckpointError(f"{files.path}: {name} must hold positive numbers")
    return factors


def _by_factors(files: GGUFFiles, theta: float, turning: int) -> dict[str, Any]:
    """Frequencies with individual divisors. Files store Llama 3.1's scaling in this tensor: if its parameters can be recovered,
    the result has them, else it has the list of divisors."""
    factors = _factors(files, "rope_freqs.weight", turning)
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
    """Divisors of the frequencies: 1 for short wavelengths, the factor for long ones (Llama 3.1)."""
    wavelength = 2 * np.pi * theta ** (np.arange(0, dim, 2) / dim)
    smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)


def has(files: GGUFFiles, *names: str) -> bool:
    """Does the first layer have one of these tensors?"""
    return any(f"blk.0.{name}" in files.tensors for name in names)


def mixture(keys: Keys, count: str = "num_experts", inner: str = "moe_intermediate_size") -> dict[str, Any]:
    """Numbers of experts in total and per token, and their width, under these keys of the configuration."""
    used = keys.integer("expert_used_count", low=1)
    name = "expert_feed_forward_length"
    even = None if name in keys else keys.integer("feed_forward_length") // used
    return {
        count: keys.integer("expert_count", low=1, high=1 << 16), "num_experts_per_tok": used,
        inner: keys.integer(name, default=even, low=1),
    }  # fmt: skip


def scale(keys: Keys) -> float:
    """Scale of the routing weights. A stored 0 means 1."""
    return keys.real("expert_weights_scale", default=1.0) or 1.0


def inner(files: GGUFFiles) -> int:
    """Inner width of a feed-forward part, from its tensor: some converters write a guess into the metadata."""
    tensor = files.tensors.get("blk.0.ffn_up.weight")
    if tensor is None or len(tensor.shape) != 2:
        raise CheckpointError(f"{files.path}: has no blk.0.ffn_up.weight, of which every layer has one")
    return tensor.shape[0]
