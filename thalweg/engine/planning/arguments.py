"""Engine arguments from Python, by vLLM's names: honoured, without effect, or rejected with the table's reason."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thalweg.config import EngineArgs
from thalweg.errors import ConfigError
from thalweg.host import envs
from thalweg.options.flag import convert
from thalweg.options.table import GONE, REMOVED, asks_nothing, table

logger = logging.getLogger(__name__)
NO_COMPILER = "the platform decides what is compiled and captured; of this object mode, level and cudagraph_mode are read"
GRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
COMPILING = ("compilation_config", "optimization_level")
AS_IT_IS = {
    "enable_prompt_embeds": "generate() takes prompt_embeds as it is",
    "enable_log_requests": "requests in Python are logged by whoever makes them",
}
"""Arguments that request, at any value, the behaviour there is anyway."""


def engine_args(fields: Mapping[str, Any]) -> EngineArgs:
    """EngineArgs of arguments by name. They override the environment. ConfigError lists every unsupported argument, with the
    reason and the alternative, and every value of a wrong type."""
    fields = dict(fields)
    if fields.pop("fail_on_environ_validation", False) and (elsewhere := envs.foreign()):
        raise ConfigError(f"fail_on_environ_validation: {elsewhere}")
    fields = _translate(fields)
    known = set(EngineArgs.__struct_fields__)
    presets = compiling(fields.pop("compilation_config", None), fields.pop("optimization_level", None), "{name}")
    problems = [p for name in sorted(set(fields) - known) if (p := _find_problem(name, fields[name])) is not None]
    if problems:
        raise ConfigError(*problems)
    kept = {name: str(value) if isinstance(value, Path) else value for name, value in fields.items() if name in known}
    if isinstance(kept.get("served_model_name"), str):
        kept["served_model_name"] = [kept["served_model_name"]]
    return EngineArgs(**convert(EngineArgs, {**envs.engine_fields(), **presets, **kept}, str))


INTERNAL = {
    "_api_process_count": (1, "one process serves HTTP"),
    "_api_process_rank": (0, "one process serves HTTP"),
    "enable_mm_processor_stats": (False, "times of reading images are not measured separately"),
    "mamba_config": ({}, "for recurrent layers only mamba_block_size is supported"),
}
"""Arguments of vLLM without a flag -> (value without effect, reason for rejecting others)."""
TRANSLATED = ("fail_on_environ_validation", "model_weights", "tokens_only")
"""Arguments with another name here, or with no meaning for the engine."""


def _translate(fields: dict[str, Any]) -> dict[str, Any]:
    """tokens_only as skip_tokenizer_init. model_weights as the model, with configuration and tokenizer from `model`."""
    if fields.pop("tokens_only", False):
        fields["skip_tokenizer_init"] = True
    if weights := fields.pop("model_weights", None):
        beside = {name: fields.get("model") for name in ("hf_config_path", "tokenizer", "served_model_name")}
        fields = {**beside, **{k: v for k, v in fields.items() if v is not None}, "model": weights}
    return fields


def _find_problem(name: str, value: Any) -> str | None:
    """The reason why the argument is not honoured. None: it requests the behaviour there is anyway."""
    flag = table().get(name.replace("_", "-"))
    if name in AS_IT_IS or (flag is not None and flag.anyway):
        return None
    if name in INTERNAL:
        default, why = INTERNAL[name]
        return None if value is None or value == default else f"{name}: {why}; omit it"
    if flag is not None and not flag.refusal:
        if value is None or value == "" or asks_nothing(flag, value):
            return None
        return f"{name}: it is a setting of the server: `thalweg serve --{flag.name}`; omit it"
    if flag is None:
        near = difflib.get_close_matches(name, EngineArgs.__struct_fields__, n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else "; `thalweg flags` lists them"
        return f"{name}: not an engine argument this version honours{hint}"
    if asks_nothing(flag, value) or (value is None and flag.option.group not in GONE):
        return None
    if flag.option.group == REMOVED:
        logger.warning("%s has no effect any more: %s", name, flag.refusal)
        return None
    return f"{name}: {flag.refusal}"


def compiling(config: Any, level: Any, form: str = "--{name}") -> dict[str, Any]:
    """Fields of EngineArgs for -O and --compilation-config. Levels and modes above 0 tune a compiler that this engine does
    not have. 0 means no compiling and no capture, as does cudagraph_mode NONE. form: the format of a name in messages."""
    where = form.format(name="compilation-config" if form.startswith("--") else "compilation_config")
    if isinstance(config, int):
        config = {"mode": config}
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(f"{where}: must be an object or a mode from 0 to 3, not {config!r:.80}")
    given = dict(config or {})
    modes = {name: given.pop(name) for name in ("mode", "level") if name in given}
    graphs = str(given.pop("cudagraph_mode", "FULL")).upper()
    problems = [f"{where}.{key}: {NO_COMPILER}" for key in sorted(given)]
    for name, value in modes.items():
        if str(value) not in ("0", "1", "2", "3"):
            problems.append(f"{where}.{name}: {value!r} is not one of 0, 1, 2, 3")
    if graphs not in GRAPH_MODES:
        problems.append(f"{where}.cudagraph_mode: {graphs!r} is not one of {', '.join(GRAPH_MODES)}")
    if problems:
        raise ConfigError(*problems)
    return {"enforce_eager": True} if graphs == "NONE" or str(level) == "0" else {}
