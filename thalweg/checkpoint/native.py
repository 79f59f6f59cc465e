"""Reads checkpoints in Mistral's format: `params.json` and `consolidated*.safetensors`, with other names and row orders.

The path of such a model is its params.json, as a GGUF model's is its file. The content is translated to transformers' form of
the same model: a configuration, and tensors with the two halves of a head of q and k separate. Mistral's files interleave them,
with the two values of a RoPE pair adjacent.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thalweg.checkpoint import native_images
from thalweg.checkpoint import native_latent as latent
from thalweg.checkpoint.json_files import read_object
from thalweg.checkpoint.pieces import SlicedCheckpoint, TensorPiece
from thalweg.checkpoint.safetensors import Checkpoint, open_checkpoint
from thalweg.checkpoint.spelling import canonical_config
from thalweg.errors import CheckpointError, UnsupportedModelError

logger = logging.getLogger(__name__)

PARAMS = "params.json"
WEIGHTS = "consolidated"
"""Prefix of the names of weight files."""
POSITIONS = 128_000
"""Default context length, if no file has one: the positions that Mistral's code computes."""
_SAME = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "hidden_dim": "intermediate_size", "head_dim": "head_dim",
    "n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads", "norm_eps": "rms_norm_eps", "dtype": "dtype",
    "vocab_size": "vocab_size", "activation": "hidden_act", "tied_embeddings": "tie_word_embeddings",
}  # fmt: skip
"""Keys of params.json -> keys of config.json."""
_READ = (
    "rope_theta",
    "sliding_window",
    "yarn",
    "moe",
    "quantization",
    "max_seq_len",
    "max_position_embeddings",
    "model_type",
    native_images.KEY,
)
_MEAN_NOTHING = ("max_batch_size", "model_parallel", "causal", "ragged_attention", "use_cache", "transformers_version")
_ELSEWHERE = {
    "multimodal": "sound", "llama_4_scaling": "queries scaled by position", "lora": "adapters", "use_biases": "biases",
}  # fmt: skip
"""Unsupported keys, unless null or false -> their meaning."""
_ONE = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj", "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj", "feed_forward.w3": "mlp.up_proj",
    "feed_forward.gate": "block_sparse_moe.gate",
}  # fmt: skip
_KINDS = {"weight": "weight", "qscale_weight": "weight_scale", "qscale_act": "input_scale"}
_NAME = re.compile(r"layers\.(\d{1,5})\.(.+)\.(\w+)")
_EXPERT = re.compile(r"feed_forward\.experts\.(\d{1,4})\.(w[123])")
_CACHE = re.compile(r"attention\.(kv|[qkv])_fake_quantizer")


def is_native(path: str | Path) -> bool:
    """Is this the path of a params.json?"""
    return Path(path).name == PARAMS


def read_config(path: str | Path) -> dict[str, Any]:
    """The equivalent of config.json. CheckpointError and UnsupportedModelError name the key."""
    params = read_object(Path(path))
    own = ("llama_4_scaling",) if latent.is_latent(params) else ()
    for key, what in _ELSEWHERE.items():
        if params.get(key) and key not in own:
            raise UnsupportedModelError(f"{path}: {key}: {what} are not read from params.json by this version{_with_hf(path)}")
    if (kind := params.get("model_type") or "transformer") != "transformer":
        raise UnsupportedModelError(f"{path}: model_type: {kind!r:.40} is not read from params.json{_with_hf(path)}")
    known = {*_SAME, *_READ, *_MEAN_NOTHING, *_ELSEWHERE, *(latent.SIZES if latent.is_latent(params) else ())}
    if unknown := sorted(key for key, value in params.items() if value and key not in known):
        logger.warning("%s: not known to this version, and not honoured: %s", path, ", ".join(unknown)[:400])
    result = {ours: params[theirs] for theirs, ours in _SAME.items() if params.get(theirs) is not None}
    result |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}
    result |= _window(Path(path), params) | _rope(Path(path), params) | _positions(Path(path), params)
    if latent.is_latent(params):
        result |= latent.config(path, params, result["rope_parameters"])
    elif params.get("moe"):
        result |= _mixture(Path(path), params["moe"])
    if params.get("quantization"):
        result["quantization_config"] = _quantization_config(Path(path), params["quantization"])
    if (images := params.get(native_images.KEY)) is not None and not latent.is_latent(params):
        result = canonical_config({**native_images.around(Path(path), images, result), "text_config": result})
    return result


def open_model(path: str | Path) -> SlicedCheckpoint:
    """Every tensor, with transformers' names and values."""
    path = Path(path)
    whole, params = open_consolidated(path), read_object(path)
    result: dict[str, TensorPiece] = {}
    for name in whole.names:
        shape = whole.entry(name)[1]
        if latent.is_latent(params) and name.startswith(latent.OTHERS):
            continue
        target = _target(name, latent.is_latent(params))
        if target is None:
            raise CheckpointError(f"{whole.file(name)}: tensor {name!r} is unknown in Mistral's format")
        result[target] = TensorPiece(
            name, shape, heads=0 if latent.is_latent(params) else _interleaved_heads(path, name, shape, params)
        )
    return SlicedCheckpoint(whole, result, path)


def _interleaved_heads(path: Path, name: str, shape: tuple[int, ...], params: Mapping[str, Any]) -> int:
    """Number of heads with interleaved rows in a tensor. 0: rows are not interleaved."""
    found, seen = _NAME.fullmatch(name), native_images.interleaved_heads(name, params)
    keys = {"attention.wq": ("n_heads",), "attention.wk": ("n_kv_heads", "n_heads")}.get(found[2] if found else "", ())
    heads = next((params[k] for k in keys if params.get(k)), 0) if seen is None else seen
    if not heads or not shape or shape[0] == 1:
        return 0
    if not isinstance(heads, int) or heads < 1 or shape[0] % (2 * heads):
        raise CheckpointError(f"{path}: {heads!r:.20} heads do not divide the {shape[0]} rows of {name}")
    return heads


def open_consolidated(path: Path) -> Checkpoint:
    """The weight files in the directory of params.json, untranslated."""
    return open_checkpoint(path.parent, WEIGHTS)


def _target(name: str, has_latents: bool = False) -> str | None:
    """Transformers' name of a tensor. None: unknown."""
    if (seen := native_images.target(name)) is not None:
        return seen
    stem, _, kind = name.rpartition(".")
    if stem in _ONE:
        return f"{_ONE[stem]}.{_KINDS[kind]}" if kind in _KINDS else None
    found = _NAME.fullmatch(name)
    if found is None or found[3] not in _KINDS:
        return None
    at, part = f"model.layers.{int(found[1])}", found[2]
    if (cache := _CACHE.fullmatch(part)) is not None:
        return f"{at}.self_attn.{cache[1]}_scale" if kind == "qscale_act" else None
    if has_latents and (own := latent.target(part)) is not None:
        return f"{at}.{own}.{_KINDS[kind]}"
    if (expert := _EXPERT.fullmatch(part)) is not None:
        return f"{at}.block_sparse_moe.experts.{int(expert[1])}.{expert[2]}.{_KINDS[kind]}"
    return f"{at}.{_LAYER[part]}.{_KINDS[kind]}" if part in _LAYER else None


def _window(path: Path, params: Mapping[str, Any]) -> dict[str, Any]:
    """One window for all layers, or a repeating list. null: the layer has full attention."""
    window = params.get("sliding_window")
    if isinstance(window, str) and window.isdecimal():
        window = int(window)
    if window is None or isinstance(window, int):
        return {"sliding_window": window}
    windows = (
        set(window) - {None} if isinstance(window, list) and all(n is None or isinstance(n, int) for n in window) else set()
    )
    layers = params.get("n_layers")
    if not windows or len(windows) > 1 or not isinstance(layers, int) or layers % len(window):
        raise UnsupportedModelError(
            f"{path}: sliding_window: must be a number, or a list of one number and nulls that repeats among layers"
        )
    types = ["full_attention" if n is None else "sliding_attention" for n in window] * (layers // len(window))
    return {"sliding_window": windows.pop(), "layer_types": types}


def _rope(path: Path, params: Mapping[str, Any]) -> dict[str, Any]:
    """RoPE settings. The default base is 10,000 with a window, as in the first of these models, and a million without."""
    result: dict[str, Any] = {"rope_type": "default", "rope_theta": params.get("rope_theta")}
    if result["rope_theta"] is None:
        result["rope_theta"] = 10_000.0 if params.get("sliding_window") else 1_000_000.0
    yarn = params.get("yarn")
    if not yarn:
        return {"rope_parameters": result}
    names = {"factor": "factor", "original_max_position_embeddings": "original_max_position_embeddings", "beta": "beta_fast",
             "alpha": "beta_slow"}  # fmt: skip
    if not isinstance(yarn, dict) or (odd := sorted(yarn.keys() - {*names, "apply_scale"})):
        raise UnsupportedModelError(
            f"{path}: yarn: must have {', '.join((*names, 'apply_scale'))}, not {odd if yarn else yarn!r:.80}"
        )
    result |= {"rope_type": "yarn"} | {ours: yarn[theirs] for theirs, ours in names.items() if theirs in yarn}
    if not yarn.get("apply_scale", True):
        result["attention_factor"] = 1.0
    return {"rope_parameters": result}


def _positions(path: Path, params: Mapping[str, Any]) -> dict[str, Any]:
    """The context length from params.json, or from config.json in the same directory."""
    key = "max_position_embeddings"
    found = params.get(key) or params.get("max_seq_len")
    beside = path.with_name("config.json")
    if found is None and beside.is_file():
        found = read_object(beside).get(key)
    if found is None:
        logger.warning("%s: names no length of contexts: %d is assumed (--max-model-len sets it)", path, POSITIONS)
    return {key: POSITIONS if found is None else found}


def _mixture(path: Path, moe: Any) -> dict[str, Any]:
    names = {"num_experts": "num_local_experts", "num_experts_per_tok": "num_experts_per_tok"}
    if not isinstance(moe, dict) or not names.keys() <= moe.keys():
        raise CheckpointError(f"{path}: moe: must be an object with {' and '.join(names)}")
    if more := sorted(k for k, v in moe.items() if v and k not in names):
        raise UnsupportedModelError(
            f"{path}: moe: {', '.join(more)[:200]}: this version reads Mixtral's mixtures{_with_hf(path)}"
        )
    return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **{ours: moe[n] for n, ours in names.items()}}


def _quantization_config(path: Path, window: Any) -> dict[str, Any]:
    """Weights in float8 with a scale per tensor. Input scales are static, from the file, or dynamic."""
    acts = {"TENSOR": "static", None: "static", "NO_SCALES": "dynamic"}
    if not isinstance(window, dict) or window.get("qformat_weight") != "fp8_e4m3" or window.get("qscheme_act") not in acts:
        raise UnsupportedModelError(
            f"{path}: quantization: {window!r:.120} is not read: this version reads qformat_weight fp8_e4m3, with qscheme_act "
            f"TENSOR or NO_SCALES{_with_hf(path)}"
        )
    return {"quant_method": "fp8", "activation_scheme": acts[window.get("qscheme_act")]}


def _with_hf(path: str | Path) -> str:
    there = Path(path).with_name("config.json").is_file()
    return "; use the config.json beside it (--config-format hf)" if there else "; use the model in the format of transformers"
