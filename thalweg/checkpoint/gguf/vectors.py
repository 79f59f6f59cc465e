"""Reads the pooling of a GGUF file: `{architecture}.pooling_type`, a number."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.errors import CheckpointError, UnsupportedModelError

DENSE = ("dense_2", "dense_3")
"""Dense layers after pooling, without biases."""
_UNSAID = 0
_MODES = {1: "mean", 2: "cls", 3: "last"}
"""llama.cpp's numbers (`enum llama_pooling_type`) -> modes of `Pooling` in models.spec."""


def read_pooling(files: GGUFFiles) -> dict[str, Any] | None:
    """The pooling, or None if the file does not have it. Vectors are normalised, as in llama.cpp's server: files have no key
    for it."""
    keys = Keys(files.path, files.metadata, f"{files.metadata.get('general.architecture')}.")
    found = keys.integer("pooling_type", default=_UNSAID)
    if found == _UNSAID:
        return None
    if found not in _MODES:
        raise UnsupportedModelError(
            f"{files.path}: {keys.prefix}pooling_type: {found} is not read by this version, which reads "
            + ", ".join(f"{number} ({mode})" for number, mode in _MODES.items())
        )
    dense = [_read_dense(files, name) for name in DENSE if f"{name}.weight" in files.tensors]
    return {"mode": _MODES[found], "normalise": True, **({"dense": dense} if dense else {})}


def _read_dense(files: GGUFFiles, name: str) -> dict[str, Any]:
    """The fields of `models.tail.Dense`."""
    shape = files.tensors[f"{name}.weight"].shape
    if len(shape) != 2:
        raise CheckpointError(f"{files.path}: {name}.weight: must be a matrix, not of shape {list(shape)}")
    outputs, inputs = shape
    return {"folder": "", "name": f"model.{name}", "inputs": inputs, "outputs": outputs, "bias": False, "act": "none"}
