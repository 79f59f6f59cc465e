"""Reads peft's folders: adapter_config.json and adapter_model.safetensors. Supported: plain LoRA, rsLoRA (alpha / sqrt(rank)),
and ranks and alphas by module. Other variants are rejected by name.

The tensors in the file determine the adapted modules: `target_modules` is ignored. Patterns are compared as text, never run as
regular expressions: those of an untrusted file may not terminate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.checkpoint.adapters.base import AdapterFormat, LowRank, read_floats
from thalweg.checkpoint.json_files import read_object
from thalweg.errors import CheckpointError, UnsupportedModelError

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
MERGE = "merge it into the base model (peft: merge_and_unload) and serve the result"
REFUSED = {
    "use_dora": "DoRA scales each output by a norm of the base weight",
    "lora_bias": "B has a bias",
    "modules_to_save": "whole modules are replaced",
    "target_parameters": "parameters of experts are adapted",
    "trainable_token_indices": "single rows of the embedding are trained",
    "layer_replication": "layers of the base model are repeated",
    "alora_invocation_tokens": "it acts from certain tokens on",
    "use_qalora": "inputs are pooled first",
    "use_bdlora": "its matrices are block-diagonal",
    "arrow_config": "several adapters are routed",
    "kasa_config": "singular values of the base model are changed",
    "velora_config": "another kind of adapter",
    "monteclora_config": "another kind of adapter",
    "megatron_config": "it is of a model that is divided already",
}
"""Fields that must be empty in plain LoRA -> their meaning."""
INITS = (None, True, False, "gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""Values of init_lora_weights that do not change the base model. Others (pissa, olora, corda, loftq) change it."""
BIASES = ("none", "lora_only", "all")
"""Values of bias. The last two add tensors where the base model has biases, which is not supported. A file without such tensors
is plain LoRA."""
TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<module>[^\0]+)\.lora_(?P<part>[AB])(?:\.[\w-]+)?\.weight")
LITERAL = re.compile(r"\^?[\w.-]+\$?")


def _holds(path: Path) -> bool:
    return path.is_dir() and (path / CONFIG).is_file()


def _read(path: Path) -> dict[str, LowRank]:
    config = path / CONFIG
    said = read_object(config)
    _check(config, said)
    if not (path / WEIGHTS).is_file():
        if (path / PICKLE).is_file():
            raise CheckpointError(f"{path / PICKLE}: pickled files can run code and are never opened; save it as safetensors")
        raise CheckpointError(f"{path / WEIGHTS}: does not exist")
    parts: dict[str, dict[str, np.ndarray]] = {}
    for name, values in read_floats(path / WEIGHTS).items():
        found = TENSOR.fullmatch(name)
        if name.endswith(".bias"):
            raise UnsupportedModelError(f"{path / WEIGHTS}: {name[:200]}: biases of adapters are not served; {MERGE}")
        if found is None:
            raise UnsupportedModelError(
                f"{path / WEIGHTS}: {name[:200]}: this version serves lora_A and lora_B of linear layers only; {MERGE}"
            )
        of = parts.setdefault(found["module"], {})
        if found["part"] in of:
            raise CheckpointError(f"{path / WEIGHTS}: {name[:200]}: the module has two lora_{found['part']}")
        of[found["part"]] = values
    return {f"{module}.weight": _module(path, said, module, arrays) for module, arrays in parts.items()}


def _module(path: Path, said: Mapping[str, Any], module: str, arrays: Mapping[str, np.ndarray]) -> LowRank:
    if arrays.keys() != {"A", "B"}:
        (only,) = arrays
        raise CheckpointError(f"{path / WEIGHTS}: {module[:200]}: has lora_{only} and not the other of the two")
    rank = _of_module(said.get("rank_pattern"), module, said["r"])
    if len(arrays["A"]) != rank:
        raise CheckpointError(
            f"{path / WEIGHTS}: {module[:200]}: rank {len(arrays['A'])}, and {CONFIG} says {rank} (r, rank_pattern)"
        )
    alpha = _of_module(said.get("alpha_pattern"), module, said["lora_alpha"])
    return LowRank(arrays["A"], arrays["B"], alpha / (rank**0.5 if said.get("use_rslora") else rank))


def _of_module(patterns: Mapping[str, Any] | None, module: str, default: Any) -> Any:
    """The value of the first pattern that matches the module's whole name, or the end of the name after a dot."""
    for pattern, value in (patterns or {}).items():
        whole, end = pattern.startswith("^"), pattern.removeprefix("^").removesuffix("$")
        if module == end or (not whole and module.endswith(f".{end}")):
            return value
    return default


def _check(file: Path, said: Mapping[str, Any]) -> None:
    """CheckpointError for values of a wrong type, UnsupportedModelError for anything except plain LoRA."""
    if (kind := said.get("peft_type", "LORA")) != "LORA":
        raise UnsupportedModelError(f"{file}: peft_type: {kind!r:.80} is not served, LORA only; {MERGE}")
    for key, why in REFUSED.items():
        if said.get(key):
            raise UnsupportedModelError(f"{file}: {key}: {why}, which is not served; {MERGE}")
    if (bias := said.get("bias", "none")) not in BIASES:
        raise CheckpointError(f"{file}: bias: {bias!r:.80} is not one of {', '.join(BIASES)}")
    init = said.get("init_lora_weights", True)
    if init not in INITS:
        raise UnsupportedModelError(
            f"{file}: init_lora_weights: {init!r:.80} changes the base model too; convert the adapter to a plain one "
            "(peft: save_pretrained(..., path_initial_model_for_weight_conversion=...))"
        )
    if unknown := next((k for k, v in said.items() if k.startswith("use_") and v and k != "use_rslora"), None):
        raise UnsupportedModelError(f"{file}: {unknown[:80]}: unknown to this version; {MERGE}")
    if not _is_rank(said.get("r")):
        raise CheckpointError(f"{file}: r: must be a whole number of at least 1, not {said.get('r')!r:.80}")
    if not _is_number(said.get("lora_alpha")):
        raise CheckpointError(f"{file}: lora_alpha: must be a finite number, not {said.get('lora_alpha')!r:.80}")
    for key, right in (("rank_pattern", _is_rank), ("alpha_pattern", _is_number)):
        patterns = said.get(key) or {}
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
