"""The supported formats of quantised checkpoints, and the formats of a model's weights: the checkpoint's, or rounded while they
are loaded. Loads no tensor framework.

A format may be third-party: an installed package names it in the entry points of the group `thalweg.formats` (the checkpoint's
`quant_method` -> "package.module:Class", a `Format`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.checkpoint.quantised import QuantizationConfig, refuse
from thalweg.errors import ConfigError
from thalweg.options.weights import CHECKPOINT_FORMATS, ROUNDINGS, SPELLINGS
from thalweg.plugins import PluginRegistry
from thalweg.quantization import grids
from thalweg.quantization.format import Format, Scheme
from thalweg.quantization.online import formats
from thalweg.quantization.others import answer

_FORMATS = "thalweg.quantization.formats"
_COMPRESSED = f"{_FORMATS}.compressed_tensors:CompressedTensors"
_AUTO_ROUND = f"{_FORMATS}.auto_round:AutoRound"
_GPTQ = f"{_FORMATS}.gptq:Gptq"
_MODELOPT = f"{_FORMATS}.modelopt:ModelOpt"
LAYOUTS = (
    "float-quantized", "int-quantized", "pack-quantized", "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
    "mxfp6-pack-quantized", "mxfp8-quantized", "mixed-precision",
)  # fmt: skip
"""Older files of compressed-tensors name no method, only one of these layouts."""
FORMATS: Mapping[str, str] = {
    "auto-round": _AUTO_ROUND,
    "awq": f"{_FORMATS}.awq:Awq",
    "bitnet": f"{_FORMATS}.bitnet:BitNet",
    "bitsandbytes": f"{_FORMATS}.bitsandbytes:BitsAndBytes",
    "compressed-tensors": _COMPRESSED,
    "fbgemm_fp8": f"{_FORMATS}.fbgemm_fp8:FbgemmFp8",
    "fp8": f"{_FORMATS}.fp8:Fp8",
    "gguf": f"{_FORMATS}.gguf:Gguf",
    "gptq": _GPTQ,
    "hqq": f"{_FORMATS}.hqq:Hqq",
    "mlx": f"{_FORMATS}.mlx:Mlx",
    "modelopt": _MODELOPT,
    "mxfp4": f"{_FORMATS}.mxfp4:Mxfp4",
    "mxfp8": f"{_FORMATS}.mxfp8:Mxfp8",
    "quark": f"{_FORMATS}.quark:Quark",
    "torchao": f"{_FORMATS}.torchao:TorchAo",
    **dict.fromkeys(LAYOUTS, _COMPRESSED),
    # Other names of the same files.
    "auto_round": _AUTO_ROUND,
    "inc": _AUTO_ROUND,
    "auto_gptq": _GPTQ,
    "gptqmodel": _GPTQ,
    **dict.fromkeys(("modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8"), _MODELOPT),
}
"""`quant_method` of a checkpoint -> "module:class"."""


_LIST = PluginRegistry("thalweg.formats", FORMATS)


def check(described: QuantizationConfig) -> None:
    """UnsupportedModelError if this version has no reader for such a checkpoint, or the reader refuses its settings."""
    name = _plain(described.method)
    if name not in _LIST:
        refuse(described, ", ".join(_LIST.names()), answer(name))
    _build_format(name, described.content)


def of_checkpoint(config: Mapping[str, Any]) -> Format | None:
    """The format of a checkpoint with a configuration that `read_config` accepted with `check`; None: it is dense."""
    description = config.get("quantization_config")
    return _build_format(_plain(str(description["quant_method"])), description) if description else None


def scheme(config: Mapping[str, Any], method: str | None) -> Scheme:
    """The formats of this checkpoint's weights. method: a name of `config.QUANTIZATIONS`, or of `online.METHODS`, or
    None. For quantised weights it may set the rounding of inputs. ConfigError where it is neither such a method nor the
    checkpoint's format."""
    found = of_checkpoint(config)
    if found is None:
        if method is not None and method not in (*ROUNDINGS, *SPELLINGS):
            raise ConfigError(
                f"quantization: {method!r} is a format of checkpoints, and this one's weights are dense: remove it, or "
                f"round them while they are loaded ({', '.join(ROUNDINGS)})"
            )
        return formats(method, config.get(grids.KEY, 0))
    if method is None or found.name in CHECKPOINT_FORMATS.get(method, (method,)):
        return found
    result = found.apply_method(method)
    if result is None:
        reason = "rounds dense weights" if method in (*ROUNDINGS, *SPELLINGS) else "is another format"
        raise ConfigError(
            f"quantization: {method!r} {reason}, and this checkpoint's are quantised already ({found.name}): remove it"
        )
    return result


def _plain(method: str) -> str:
    """Some writers put their own name before it, and a slash."""
    return method.rpartition("/")[2]


def _build_format(method: str, description: Mapping[str, Any]) -> Format:
    kind: type[Format] = _LIST.load(method)
    return kind(description)
