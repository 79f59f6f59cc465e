"""Reads sentence-transformers' files: the pooling of hidden states into one vector, and the longest text of the model.
`modules.json` lists the steps, each with its folder.

The result has the fields of `Pooling` in models.spec: {"mode": "mean", "normalise": true, "max_len": 256}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from thalweg.errors import CheckpointError, UnsupportedModelError

MODULES = "modules.json"
LENGTHS = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
COLBERT = "artifact.metadata"
"""The file of ColBERT's library."""
MODES = {
    "cls": "cls", "mean": "mean", "lasttoken": "last", "max": "max", "mean_sqrt_len": "mean_sqrt_len",
    "weightedmean": "weightedmean",
}  # fmt: skip
"""Modes of `1_Pooling/config.json` -> our modes."""

MAX_FEATURES = 1 << 20
ACTS = {
    "Identity": "none", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Sigmoid": "sigmoid",
}  # fmt: skip
"""`activation_function` of a Dense module, by the last part of its name -> `act` of `models.tail.Dense`."""

Read = Callable[[Path], Any]


def read_pooling(path: Path, read: Read) -> dict[str, Any] | None:
    """The pooling of a model directory. None: it has no such files. read: reads a JSON file, or raises CheckpointError.
    UnsupportedModelError names an unsupported step."""
    if not (path / MODULES).is_file():
        return _colbert(path / COLBERT, read)
    found: dict[str, Any] = {}
    whole = True
    modules = read(path / MODULES)
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise CheckpointError(f"{path / MODULES}: must be a list of objects")
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Normalize":
            found["normalise"] = True
        elif kind == "Pooling":
            folder = _inside(path, module.get("path"))
            settings = read(folder / "config.json")
            found |= {"mode": _mode(settings, folder / "config.json"), "normalise": False}
            whole = settings.get("include_prompt", True)
        elif kind == "SpladePooling":
            found |= _read_splade(_inside(path, module.get("path")) / "config.json", read)
        elif kind == "Dense":
            if found.get("normalise"):
                raise UnsupportedModelError(f"{path / MODULES}: a Dense step after Normalize is not supported")
            found.setdefault("dense", []).append(_dense(path, module.get("path"), read))
            if str(module.get("type")).startswith("pylate."):
                found |= {"each": True}
        elif kind not in ("Transformer", "MLMTransformer"):
            raise UnsupportedModelError(
                f"{path / MODULES}: type: {kind!r:.80} is not supported; this version does Transformer, MLMTransformer, "
                "Pooling, SpladePooling, Dense and Normalize"
            )
    if found.get("each"):
        found.setdefault("normalise", True)
    if (path / LENGTHS).is_file():
        lengths = read(path / LENGTHS)
        if isinstance(lengths, dict) and lengths.get("max_seq_length") is not None:
            found["max_len"] = lengths["max_seq_length"]
    if whole and (path / PROMPTS).is_file():  # otherwise vectors exclude the prompt's tokens, which is not implemented
        found["prompts"] = _prompts(path / PROMPTS, read)
    return found


def _read_splade(file: Path, read: Read) -> dict[str, Any]:
    """The one supported form: log(1 + relu(logits)), and of each word the largest."""
    settings = read(file)
    if not isinstance(settings, Mapping):
        raise CheckpointError(f"{file}: must hold a JSON object")
    for key, only in (("pooling_strategy", "max"), ("activation_function", "relu")):
        if settings.get(key, only) != only:
            raise UnsupportedModelError(f"{file}: {key}: {settings[key]!r:.80} is not supported; only {only!r} is")
    return {"lexical": True, "normalise": False}


def _colbert(file: Path, read: Read) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    settings = read(file)
    return {"dim": settings["dim"]} if isinstance(settings, dict) and settings.get("dim") is not None else None


def _prompts(file: Path, read: Read) -> dict[str, str]:
    """Name of a task -> its prompt. Empty prompts are omitted."""
    config = read(file)
    prompts = config.get("prompts") if isinstance(config, dict) else None
    if prompts is None:
        return {}
    if not isinstance(prompts, dict) or not all(isinstance(p, str) for p in prompts.values()):
        raise CheckpointError(f"{file}: prompts: must map names to text")
    return {str(name): prompt for name, prompt in prompts.items() if prompt}


def _dense(path: Path, name: Any, read: Read) -> dict[str, Any]:
    """The fields of `models.tail.Dense`."""
    folder = _inside(path, name)
    file = folder / "config.json"
    config = read(file)
    if not isinstance(config, Mapping):
        raise CheckpointError(f"{file}: must hold a JSON object")
    if config.get("use_residual"):
        raise UnsupportedModelError(f"{file}: use_residual: this version does not support residuals of Dense steps")
    sizes = {key: config.get(key) for key in ("in_features", "out_features")}
    for key, value in sizes.items():
        if type(value) is not int or not 1 <= value <= MAX_FEATURES:
            raise CheckpointError(f"{file}: {key}: must be an integer from 1 to {MAX_FEATURES}, not {value!r:.80}")
    act, bias = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")), config.get("bias", True)
    if act.rpartition(".")[2] not in ACTS:
        raise UnsupportedModelError(f"{file}: activation_function: {act!r:.80} is not supported; known are {', '.join(ACTS)}")
    if not isinstance(bias, bool):
        raise CheckpointError(f"{file}: bias: must be true or false, not {bias!r:.80}")
    return {
        "folder": folder.relative_to(path).as_posix(), "inputs": sizes["in_features"], "outputs": sizes["out_features"],
        "bias": bias, "act": ACTS[act.rpartition(".")[2]],
    }  # fmt: skip


def _inside(path: Path, name: Any) -> Path:
    """A subfolder of the model. The name is untrusted."""
    parts = PurePosixPath(name).parts if isinstance(name, str) else ()
    if not parts or ".." in parts or PurePosixPath(name).is_absolute():
        raise CheckpointError(f"{path / MODULES}: path: {name!r:.80} is not a folder of the model")
    return path.joinpath(*parts)


def _mode(config: Any, file: Path) -> str:
    """The mode from `pooling_mode`, or from one flag per mode in older files."""
    if not isinstance(config, Mapping):
        raise CheckpointError(f"{file}: must hold a JSON object")
    named = config.get("pooling_mode")
    prefix = "pooling_mode_"
    on = [named] if named is not None else [k.removeprefix(prefix) for k, v in config.items() if k.startswith(prefix) and v]
    modes = [str(m).removesuffix("_token").removesuffix("_tokens") for m in on]
    if len(modes) != 1 or modes[0] not in MODES:
        raise UnsupportedModelError(
            f"{file}: pooling by {' and '.join(modes) or 'nothing'} is not supported; this version has {', '.join(MODES)}"
        )
    return MODES[modes[0]]
