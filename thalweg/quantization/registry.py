"""Which quantised checkpoints this version reads, and what a model's weights are held in: as its checkpoint keeps them, or
rounded while they are loaded. Loads no tensor framework.

A format may come from outside the repository: an installed package names it in the entry points of the group
`thalweg.formats` (the checkpoint's `quant_method` -> "package.module:Class", a `Format`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.checkpoint.quantised import Described, refuse
from thalweg.errors import ConfigError
from thalweg.plugins import OpenList
from thalweg.quantization.format import Format, Scheme
from thalweg.quantization.online import formats

_FORMATS = "thalweg.quantization.formats"
_COMPRESSED = f"{_FORMATS}.compressed_tensors:CompressedTensors"
FORMATS: Mapping[str, str] = {
    "compressed-tensors": _COMPRESSED,
    "fp8": f"{_FORMATS}.fp8:BlockFp8",
    "gguf": f"{_FORMATS}.gguf:Gguf",
    # Older files of compressed-tensors name no method, only the layout.
    "float-quantized": _COMPRESSED,
    "int-quantized": _COMPRESSED,
    "pack-quantized": _COMPRESSED,
}
"""`quant_method` of a checkpoint -> "module:class"."""


_LIST = OpenList("thalweg.formats", FORMATS)


def check(described: Described) -> None:
    """UnsupportedModelError if this version has no reader for such a checkpoint, or the reader refuses its settings."""
    if described.method not in _LIST:
        refuse(described, ", ".join(_LIST.names()))
    _made(described.method, described.content)


def of_checkpoint(config: Mapping[str, Any]) -> Format | None:
    """The format of a checkpoint whose configuration `read_config` accepted with `check`; None: it is dense."""
    description = config.get("quantization_config")
    return _made(str(description["quant_method"]), description) if description else None


def scheme(config: Mapping[str, Any], method: str | None) -> Scheme:
    """What the weights of this checkpoint are held in. method: a name of `online.METHODS` to round to, or None. Weights that
    are quantised already may take it for how inputs are multiplied, and raise ConfigError if they do not."""
    found = of_checkpoint(config)
    if found is None:
        return formats(method)
    if method is None:
        return found
    made = found.multiplied(method)
    if made is None:
        raise ConfigError(
            f"quantization: {method!r} rounds dense weights, and this checkpoint's are quantised already ({found.name}): "
            "leave it out"
        )
    return made


def _made(method: str, description: Mapping[str, Any]) -> Format:
    kind: type[Format] = _LIST.load(method)
    return kind(description)
