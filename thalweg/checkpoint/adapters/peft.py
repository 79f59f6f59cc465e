"""Reads peft's folders: adapter_config.json and adapter_model.safetensors. Supported: plain LoRA, rsLoRA (alpha / sqrt(rank)),
ranks and alphas by module, DoRA, biases, embeddings and output matrices, and whole layers of classifiers. Other variants are
rejected by name.

The tensors in the file determine the adapted modules: `target_modules` is ignored. Patterns are compared as text, never run as
regular expressions: those of an untrusted file may not terminate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.checkpoint.adapters.base import AdapterFormat, LowRank, Replaced, StackedLowRank, Update, read_floats
from thalweg.checkpoint.adapters.peft_refusals import MERGE, check_kind
from thalweg.checkpoint.json_files import read_object
from thalweg.errors import CheckpointError, UnsupportedModelError

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
BIASES = ("none", "lora_only", "all")
"""Values of bias. The last two add tensors where the base model has biases. A file without such tensors is plain LoRA."""
PREFIX, BASE = "base_model.model.", ".base_layer"
TENSOR = re.compile(
    r"(?P<module>[^\0]+?)\.(?P<part>lora_A|lora_B|lora_magnitude_vector|lora_embedding_[AB])(?:\.(?!weight$|bias$)[\w-]+)?(?:\.(?P<leaf>weight|bias))?"
)
FIELDS = {
    ("lora_A", "weight"): "A", ("lora_B", "weight"): "B", ("lora_B", "bias"): "bias",
    ("lora_magnitude_vector", "weight"): "magnitude", ("lora_magnitude_vector", None): "magnitude",
    ("lora_embedding_A", None): "table A", ("lora_embedding_B", None): "table B",
}  # fmt: skip
"""Name of a part, and its last word -> the array of a module."""
LITERAL = re.compile(r"\^?[\w.-]+\$?")


@dataclass(slots=True)
class _Tensors:
    """The tensors of a file, by what they are."""

    modules: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    """Module -> array of `FIELDS` -> values."""
    replaced: dict[str, np.ndarray] = field(default_factory=dict)
    """Name of a tensor of the base model -> its new values."""
    copies: dict[str, Callable[[], np.ndarray]] = field(default_factory=dict)
    """Module -> reader of the copy of its base matrix."""


def _holds(path: Path) -> bool:
    return path.is_dir() and (path / CONFIG).is_file()


def _read(path: Path) -> dict[str, Update]:
    config = path / CONFIG
    settings = read_object(config)
    _check(config, settings)
    if not (path / WEIGHTS).is_file():
        if (path / PICKLE).is_file():
            raise CheckpointError(
                f"{path / PICKLE}: pickled files can run code and are never opened; save it as safetensors "
                "(peft: save_pretrained(..., safe_serialization=True))"
            )
        raise CheckpointError(f"{path / WEIGHTS}: does not exist")
    found = _sort(path / WEIGHTS, read_floats(path / WEIGHTS))
    if alone := found.copies.keys() - found.modules.keys():
        raise CheckpointError(f"{path / WEIGHTS}: {min(alone)[:200]}: has a base_layer and no lora_A")
    updates: dict[str, Update] = {}
    for module, arrays in found.modules.items():
        if _is_stacked(settings, module):
            updates[module] = _stack(path, settings, module, arrays)
        else:
            updates[f"{module}.weight"] = _module(path, settings, module, arrays, found.copies.get(module))
    return updates | {name: Replaced(values) for name, values in found.replaced.items()}


def _sort(file: Path, tensors: Mapping[str, Callable[[], np.ndarray]]) -> _Tensors:
    """CheckpointError for a tensor given twice, UnsupportedModelError for one of no known use."""
    result = _Tensors()
    for stored, read in tensors.items():
        name = stored.removeprefix(PREFIX)
        part = TENSOR.fullmatch(name)
        known = None if part is None else FIELDS.get((part["part"], part["leaf"]))
        if part is not None and known is not None:
            of = result.modules.setdefault(part["module"], {})
            if known in of:
                raise CheckpointError(f"{file}: {stored[:200]}: the module has two lora_{known}")
            of[known] = read()
        elif part is None and name.endswith(f"{BASE}.weight"):
            result.copies[name.removesuffix(f"{BASE}.weight")] = read
        elif part is None and name.endswith((".bias", ".weight")) and "lora_" not in name:
            leaf = name.rpartition(".")[2]
            plain = f"{name.removesuffix(f'.{leaf}').removesuffix(BASE)}.{leaf}"
            if plain in result.replaced:
                raise CheckpointError(f"{file}: {stored[:200]}: the module has two of this tensor")
            result.replaced[plain] = read()
        else:
            raise UnsupportedModelError(
                f"{file}: {stored[:200]}: no lora_A, lora_B, magnitude or bias, and others are not served; {MERGE}"
            )
    return result


def _module(
    path: Path,
    settings: Mapping[str, Any],
    module: str,
    arrays: Mapping[str, np.ndarray],
    base: Callable[[], np.ndarray] | None,
) -> LowRank:
    if "table A" in arrays and "table B" in arrays:  # of an embedding [vocab, hidden], so the other way round
        turned = {"A": arrays["table B"].T, "B": arrays["table A"].T}
        arrays = turned | {k: v for k, v in arrays.items() if not k.startswith("table")}
    for one in ("A", "B"):
        if one not in arrays:
            raise CheckpointError(f"{path / WEIGHTS}: {module[:200]}: has {', '.join(sorted(arrays))} and no lora_{one}")
    if bool(settings.get("use_dora")) != ("magnitude" in arrays):
        has = (
            "no lora_magnitude_vector, and use_dora"
            if settings.get("use_dora")
            else "a lora_magnitude_vector, and not use_dora"
        )
        raise CheckpointError(f"{path / WEIGHTS}: {module[:200]}: has {has} in {CONFIG}: the file is not whole")
    rank = _of_module(settings.get("rank_pattern"), module, settings["r"])
    if len(arrays["A"]) != rank:
        raise CheckpointError(
            f"{path / WEIGHTS}: {module[:200]}: rank {len(arrays['A'])}, and {CONFIG} says {rank} (r, rank_pattern)"
        )
    alpha = _of_module(settings.get("alpha_pattern"), module, settings["lora_alpha"])
    scale = alpha / (rank**0.5 if settings.get("use_rslora") else rank)
    return LowRank(arrays["A"], arrays["B"], scale, arrays.get("magnitude"), arrays.get("bias"), base)


def _is_stacked(settings: Mapping[str, Any], module: str) -> bool:
    """Is it of a parameter with a matrix for each expert? peft names the module that holds it, with `.base_layer` for each
    further parameter of that module."""
    holders = {str(p).rpartition(".")[0] for p in settings.get("target_parameters") or ()}
    plain = module
    while plain.endswith(BASE):
        plain = plain.removesuffix(BASE)
    return any(plain == holder or plain.endswith(f".{holder}") for holder in holders)


def _stack(path: Path, settings: Mapping[str, Any], module: str, arrays: Mapping[str, np.ndarray]) -> StackedLowRank:
    """A has the expert as its outer dimension [experts * rank, inputs], B as its inner one [outputs, rank * experts]."""
    if arrays.keys() != {"A", "B"}:
        raise CheckpointError(f"{path / WEIGHTS}: {module[:200]}: has {', '.join(sorted(arrays))}, not lora_A and lora_B only")
    a, b, rank = arrays["A"], arrays["B"], settings["r"]
    if a.ndim != 2 or b.ndim != 2 or len(a) % rank or b.shape[1] != len(a):
        raise CheckpointError(
            f"{path / WEIGHTS}: {module[:200]}: A of shape {list(a.shape)} and B of shape {list(b.shape)} do not hold "
            f"{rank} rows for each expert (r)"
        )
    experts = len(a) // rank
    scale = settings["lora_alpha"] / (rank**0.5 if settings.get("use_rslora") else rank)
    return StackedLowRank(a.reshape(experts, rank, -1), b.reshape(len(b), rank, experts).transpose(2, 0, 1), scale)


def _of_module(patterns: Mapping[str, Any] | None, module: str, default: Any) -> Any:
    """The value of the first pattern that matches the module's whole name, or the end of the name after a dot."""
    for pattern, value in (patterns or {}).items():
        whole, end = pattern.startswith("^"), pattern.removeprefix("^").removesuffix("$")
        if module == end or (not whole and module.endswith(f".{end}")):
            return value
    return default


def _check(file: Path, settings: Mapping[str, Any]) -> None:
    """CheckpointError for values of a wrong type, UnsupportedModelError for variants that are not served."""
    check_kind(file, settings)
    if (bias := settings.get("bias", "none")) not in BIASES:
        raise CheckpointError(f"{file}: bias: {bias!r:.80} is not one of {', '.join(BIASES)}")
    if settings.get("use_dora") and settings.get("lora_bias"):
        raise CheckpointError(f"{file}: lora_bias: peft has no DoRA with it; leave one of the two out")
    if not _is_rank(settings.get("r")):
        raise CheckpointError(f"{file}: r: must be a whole number of at least 1, not {settings.get('r')!r:.80}")
    if not _is_number(settings.get("lora_alpha")):
        raise CheckpointError(f"{file}: lora_alpha: must be a finite number, not {settings.get('lora_alpha')!r:.80}")
    for key, right in (("rank_pattern", _is_rank), ("alpha_pattern", _is_number)):
        patterns = settings.get(key) or {}
        if not isinstance(patterns, Mapping) or not all(right(v) for v in patterns.values()):
            raise CheckpointError(f"{file}: {key}: must map names of modules to numbers")
        if odd := next((p for p in patterns if not LITERAL.fullmatch(p)), None):
            raise UnsupportedModelError(
                f"{file}: {key}: {odd!r:.80}: regular expressions are not run; name modules, or ends of their names"
            )


def _is_rank(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_number(value: Any) -> bool:
    """Is it a finite number, also after conversion to float?"""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


FORMAT = AdapterFormat(_holds, _read)
