"""Is a checkpoint quantised, and how? None may pass for a dense one. Where nobody reads its format it is refused by
the file and key, or the tensor, that says so. No tensor framework, and no format is known here.

The marks are those that the writers of such files leave: keys of config.json, files beside it, dtypes and names of
tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from thalweg.errors import UnsupportedModelError

KEYS = ("quantization_config", "compression_config", "quantization")
"""Keys of config.json, at its top or in the part of one modality (text_config ...). transformers, older
compressed-tensors, MLX."""
FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json", "quantization_config.json")
"""Files beside config.json. ModelOpt, GPTQ, AWQ, AutoRound."""
METHODS = {"hf_quant_config.json": "modelopt"}
"""Of those that name an algorithm, and not the writer."""
SAYS = ("quant_method", "quant_algo", "quantization", "config_groups", "bits", "w_bit", "checkpoint_format")
"""Keys of which such a file has one. The second name is also used for ONNX models, which lie beside dense weights."""
UNNAMED = {"desc_act": "gptq", "q_group_size": "awq", "w_bit": "awq"}
"""Keys of descriptions that name no method, and whose they are: of files beside config.json, by AutoGPTQ, AutoAWQ, llm-awq."""
SUFFIXES = (
    "qweight", "qzeros", "g_idx", "weight_packed", "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale",
    "weight_zero_point", "weight_qdata", "SCB", "absmax", "quant_map", "W_q", "trellis",
)  # fmt: skip
"""Last parts of names of tensors that only quantised layers have (and, of gpt-oss in MXFP4, whatever ends in _blocks)."""
NARROW = ("float8_", "int", "uint")
"""dtypes, by their beginning, that no dense weight is stored in."""


@dataclass(frozen=True, slots=True)
class QuantizationConfig:
    """What a checkpoint says of its quantised weights."""

    where: str
    """File and key, for messages."""
    method: str
    """Name that the description gives its format."""
    content: Mapping[str, Any]


def find_quantization_config(
    config: Mapping[str, Any], file: Path, beside: Mapping[str, Mapping[str, Any]]
) -> QuantizationConfig | None:
    """What config.json (`file`), or else one of the files beside it (by name, in FILES), says of quantised weights."""
    for where, part in _parts(config):
        for key in KEYS:
            if part.get(key):
                return _build_config(f"{file}: {where}{key}", part[key])
    for name, content in beside.items():
        found = content.get("quantization", content)
        nothing = isinstance(found, Mapping) and not any(found.get(k) for k in (*SAYS, "kv_cache_quant_algo"))
        if not nothing:
            return _build_config(str(file.with_name(name)), found, METHODS.get(name))
    return None


def _build_config(where: str, found: Any, method: str | None = None) -> QuantizationConfig:
    return QuantizationConfig(where, method or _method(found), found if isinstance(found, Mapping) else {})


def refuse(found: QuantizationConfig, known: str = "", answer: str = "") -> NoReturn:
    """known: the formats that are read, for the message. answer: why this one is not, and what to do."""
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
    """How a description names its format."""
    if not isinstance(described, Mapping):
        return f"{described!r:.40}"
    for key in ("quant_method", "quant_algo", "format", "kv_cache_quant_algo"):
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
