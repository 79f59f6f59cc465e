"""Reads adapters of llama.cpp: GGUF files of the type "adapter", as its convert_lora_to_gguf.py writes them. Their scale is
adapter.lora.alpha / rank, or 1 if alpha is 0."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.checkpoint.adapters.base import AdapterFormat, LowRank, Update, widen
from thalweg.checkpoint.gguf.architectures import TABLE
from thalweg.checkpoint.gguf.architectures.common import Architecture
from thalweg.checkpoint.gguf.blocks import dense
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.names import is_gguf
from thalweg.errors import CheckpointError, UnsupportedModelError

TENSOR = re.compile(r"(?:blk\.(?P<layer>\d{1,6})\.)?(?P<name>[a-z_.\d]+)\.weight\.lora_(?P<part>[ab])")
ROTATED = ("attn_q", "attn_k")
CONVERT = "serve the adapter in peft's own form"


def _holds(path: Path) -> bool:
    return _find_file(path) is not None


def _find_file(path: Path) -> Path | None:
    """The file, or the only GGUF file of a folder."""
    found = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    files = [file for file in found if is_gguf(file)]
    return files[0] if len(files) == 1 else None


def _read(path: Path) -> dict[str, Update]:
    path = _find_file(path) or path
    files = GGUFFiles(path)
    metadata = files.metadata
    if metadata.get("general.type") != "adapter" or metadata.get("adapter.type") != "lora":
        raise CheckpointError(f"{path}: general.type and adapter.type are not adapter and lora: it is no adapter")
    if "adapter.alora.invocation_tokens" in metadata:
        raise UnsupportedModelError(
            f"{path}: adapter.alora.invocation_tokens: it acts from certain tokens on (aLoRA), which is not served; train a "
            "plain LoRA adapter"
        )
    kind = str(metadata.get("general.architecture"))
    architecture = TABLE.get(kind)
    if architecture is None:
        raise UnsupportedModelError(f"{path}: general.architecture: {kind!r:.80} is not read; {CONVERT}")
    alpha = metadata.get("adapter.lora.alpha")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not np.isfinite(alpha):
        raise CheckpointError(f"{path}: adapter.lora.alpha: must be a finite number, not {alpha!r:.80}")
    pairs: dict[tuple[str, bool], dict[str, np.ndarray]] = {}
    for stored in files.tensors:
        found = TENSOR.fullmatch(stored)
        name = None if found is None else _name(architecture, found["layer"], found["name"])
        if found is None or name is None:
            raise UnsupportedModelError(f"{path}: {stored[:200]}: no lora_a or lora_b of a linear layer of {kind}; {CONVERT}")
        pairs.setdefault((name, architecture.turned and found["name"] in ROTATED), {})[found["part"]] = _values(files, stored)
    updates: dict[str, Update] = {}
    for (name, paired), arrays in pairs.items():
        if arrays.keys() != {"a", "b"}:
            raise CheckpointError(f"{path}: {name}: has lora_{''.join(arrays)} and not the other of the two")
        scale = float(alpha) / max(1, len(arrays["a"])) if alpha else 1.0
        updates[name] = LowRank(arrays["a"], arrays["b"], scale, paired=paired)
    return updates


def _name(architecture: Architecture, layer: str | None, name: str) -> str | None:
    """The checkpoint's name of a matrix. None: it is none that adapters may change here."""
    if layer is None:
        return f"{architecture.whole['output']}.weight" if name == "output" and "output" in architecture.whole else None
    known: Any = architecture.layer.get(name)
    if known is None or name in architecture.by_head or any(f"{name}.weight".endswith(end) for end in architecture.special):
        return None
    return f"{architecture.layers.format(layer, known)}.weight"


def _values(files: GGUFFiles, name: str) -> np.ndarray:
    """f32, decoded if the tensor is quantised."""
    tensor = files.tensors[name]
    if tensor.type.dense:
        return widen(files.path, name, tensor.type.dense, files.read(name))
    return dense(tensor.type, files.read(name))


FORMAT = AdapterFormat(_holds, _read)
