"""Detects quantised checkpoints, so that none is loaded as a dense one. An unsupported format is an error that names the file
and key, or the tensor. This module knows no tensor framework and no format.

It recognises keys of config.json, further files in its directory, and dtypes and names of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from thalweg.errors import UnsupportedModelError

KEYS = ("quantization_config", "compression_config", "quantization")
"""Keys of config.json, at the top or in the part of one modality (text_config ...): of transformers, older compressed-tensors,
and MLX."""
FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json", "quantization_config.json")
"""Files in the directory of config.json: of ModelOpt, GPTQ, AWQ, AutoRound."""
METHODS = {"hf_quant_config.json": "modelopt"}
"""Writers of files that name only an algorithm."""
SAYS = ("quant_method", "quant_algo", "quantization", "config_groups", "bits", "w_bit", "checkpoint_format")
"""Such a file has one of these keys. quantize_config.json is also a name for ONNX models' files, next to dense weights."""
METHOD_KEYS = ("quant_method", "quant_algo", "format", "kv_cache_quant_algo")
"""Keys with the name of the format, in this order."""
UNNAMED = {"desc_act": "gptq", "q_group_size": "awq", "w_bit": "awq"}
"""Key of a description without a method -> the method. They occur in separate files of AutoGPTQ, AutoAWQ, llm-awq."""
MLX = ("bits", "group_size")
"""Keys of MLX's description, in config.json. It names no method."""
SUFFIXES = (
    "qweight", "qzeros", "g_idx", "weight_packed", "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale",
    "weight_zero_point", "weight_qdata", "SCB", "absmax", "quant_map", "W_q", "trellis",
)  # fmt: skip
"""Last parts of tensor names that only quantised layers have. In gpt-oss with MXFP4, also every name ending in _blocks."""
NARROW = ("float8_", "int", "uint")
"""Prefixes of dtypes not used for dense weights."""


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """A checkpoint's description of its quantised weights."""

    where: str
    """File and key, for messages."""
    method: str
    """Name of the format in the description."""
    content: Mapping[str, Any]


def find_quantization_config(
    config: Mapping[str, Any], file: Path, beside: Mapping[str, Mapping[str, Any]]
) -> QuantizationConfig | None:
    """The description of quantised weights in config.json (`file`), or else in one of the further files (`beside`, by name in
    FILES)."""
    for where, part in _parts(config):
        for key in KEYS:
            if part.get(key):
                return _build_config(f"{file}: {where}{key}", part[key], _unnamed_method(part[key]))
    for name, content in beside.items():
        found = content.get("quantization", content)
        nothing = isinstance(found, Mapping) and not any(found.get(k) for k in (*SAYS, "kv_cache_quant_algo"))
        if not nothing:
            return _build_config(str(file.with_name(name)), found, METHODS.get(name))
    return None


def _build_config(where: str, found: Any, method: str | None = None) -> QuantizationConfig:
    return QuantizationConfig(where, method or _method(found), found if isinstance(found, Mapping) else {})


def _unnamed_method(found: Any) -> str | None:
    """The method of a description in config.json that has MLX's keys, and no method."""
    bare = isinstance(found, Mapping) and all(key in found for key in MLX) and not {*METHOD_KEYS, *UNNAMED} & found.keys()
    return "mlx" if bare else None


def refuse(found: QuantizationConfig, known: str = "", answer: str = "") -> NoReturn:
    """Raise UnsupportedModelError. known: supported formats, for the message. answer: the reason and the remedy for this
    format."""
    _refuse(found.where, found.method, known, answer)


def refuse_tensor(file: Path, name: str, dtype: str) -> None:
    """UnsupportedModelError if this tensor is part of a quantised layer."""
    last = name.rpartition(".")[2]
    if last in SUFFIXES or last.endswith("_blocks") or ".quant_state." in name:
        _refuse(f"{file}: tensor {name}", f"by the tensor's name, stored as {dtype}")
    if last == "weight" and dtype.startswith(NARROW):
        _refuse(f"{file}: tensor {name}", f"stored as {dtype}")


def _parts(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "", config
    for key, value in config.items():
        if key.endswith("_config") and key not in KEYS and isinstance(value, Mapping):
            yield f"{key}.", value


def _method(described: object) -> str:
    """The format's name in a description."""
    if not isinstance(described, Mapping):
        return f"{described!r:.40}"
    for key in METHOD_KEYS:
        if isinstance(described.get(key), str):
            return f"{described[key]:.40}"
    if found := next((name for key, name in UNNAMED.items() if key in described), None):
        return found
    bits = described.get("bits") or described.get("w_bit")
    return f"{bits} bits" if isinstance(bits, int) else "of a kind it does not name"


def _refuse(where: str, what: str, known: str = "", answer: str = "") -> NoReturn:
    if answer:
        raise UnsupportedModelError(f"{where}: quantised checkpoints ({what}) are not read by this version: {answer}")
    which = f", which reads {known}" if known else ""
    raise UnsupportedModelError(
        f"{where}: quantised checkpoints ({what}) are not read by this version{which}; use the model's bfloat16 or float16 "
        "checkpoint, and --quantization int8 or int4 to round it while it loads"
    )
