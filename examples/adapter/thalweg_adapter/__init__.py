"""LoRA adapters of MLX LM: y + scale * (x @ lora_a) @ lora_b, with lora_a [inputs, rank] and lora_b [rank, outputs]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thalweg.checkpoint.adapters.base import AdapterFormat, LowRank, read_floats
from thalweg.checkpoint.json_files import read_object
from thalweg.errors import CheckpointError, UnsupportedModelError

CONFIG, WEIGHTS = "adapter_config.json", "adapters.safetensors"
A, B = ".lora_a", ".lora_b"


def holds(path: Path) -> bool:
    return (path / CONFIG).is_file() and (path / WEIGHTS).is_file()


def read(path: Path) -> dict[str, LowRank]:
    scale, tensors = _scale(path / CONFIG), read_floats(path / WEIGHTS)
    for name in tensors:
        twin = name.removesuffix(A) + B if name.endswith(A) else name.removesuffix(B) + A
        if not name.endswith((A, B)):
            raise UnsupportedModelError(f"{path / WEIGHTS}: {name[:200]}: only lora_a and lora_b are served")
        if twin not in tensors:
            raise CheckpointError(f"{path / WEIGHTS}: {name[:200]}: there is no {twin[:200]}")
    modules = [name.removesuffix(A) for name in tensors if name.endswith(A)]
    return {f"{module}.weight": LowRank(tensors[module + A]().T, tensors[module + B]().T, scale) for module in modules}


def _scale(file: Path) -> float:
    config = read_object(file)
    if (kind := config.get("fine_tune_type", "lora")) != "lora":
        raise UnsupportedModelError(f"{file}: fine_tune_type: {kind!r:.80} is not served, lora only")
    parameters = config.get("lora_parameters")
    scale: Any = parameters.get("scale") if isinstance(parameters, dict) else None
    if not isinstance(scale, int | float) or isinstance(scale, bool):
        raise CheckpointError(f"{file}: lora_parameters: scale must be a number, not {scale!r:.80}")
    return float(scale)


FORMAT = AdapterFormat(holds, read)
