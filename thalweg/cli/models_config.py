"""`--models-config FILE`: several models in one server, from a YAML or JSON file.

    max_loaded: 2
    memory: 24G
    idle_seconds: 600
    models:
      - model: /models/Qwen3-0.6B
        name: small
        aliases: [qwen]
        pinned: true
        max_model_len: 8192

Other keys of a model are flags. Flags of the command line are the defaults of every model. Errors name the file, the entry and
the field, before a process starts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from thalweg.cli import common, config_file, flags
from thalweg.config import EngineArgs
from thalweg.engine.planning import checkpoint_config
from thalweg.engine.planning.memory import Plan, gib, plan
from thalweg.errors import ConfigError, ThalwegError
from thalweg.lora import read_modules
from thalweg.options.answers import AnswerOptions
from thalweg.options.http import HttpOptions
from thalweg.options.model import BUNDLED
from thalweg.options.table import table
from thalweg.options.values import human_int
from thalweg.server.router.models import ModelEntry, ModelList
from thalweg.server.settings import ServerSettings

FLAG = "--models-config"
WHOLE = frozenset(HttpOptions.__struct_fields__) | {
    "config", "log_level", "fail_on_environ_validation", "models_config", "server_dev_mode", "tokens_only", "metrics_prefix",
    "enable_request_id_headers", "enable_server_load_tracking", "public_metrics", "metrics_port", "custom_histogram_buckets",
    "otlp_traces_endpoint", "tool_parser_plugin", "reasoning_parser_plugin", "strict_requests",
}  # fmt: skip
"""Settings of the whole server: given on the command line."""
PER_MODEL = frozenset(AnswerOptions.__struct_fields__) - WHOLE
MOST_MODELS = 1000


class ModelsFile(msgspec.Struct, forbid_unknown_fields=True):
    """The file. Keys of `models` are checked one by one."""

    models: list[dict[str, Any]]
    max_loaded: int | None = None
    memory: int | str | None = None
    idle_seconds: float = 0.0


class ResidencyFields(msgspec.Struct, forbid_unknown_fields=True):
    """Keys of a model that are no flags."""

    name: str | None = None
    aliases: list[str] = []
    pinned: bool = False
    idle_seconds: float | None = None


def read_models(namespace: argparse.Namespace, parser: flags.Parser, settings: ServerSettings) -> ModelList:
    """The models of the file that the flag names. ConfigError names file, entry and field.

    settings: the server's, of the command line."""
    file = Path(flags.explicit_value(namespace, "models_config"))
    content = config_file.read_yaml(FLAG, file)
    try:
        models = msgspec.convert(content, ModelsFile)
    except msgspec.ValidationError as e:
        raise ConfigError(f"{file}: {describe_error(e)}") from None
    if not 0 < len(models.models) <= MOST_MODELS:
        raise ConfigError(f"{file}: models: has {len(models.models)} entries; list 1 to {MOST_MODELS} models")
    if models.max_loaded is not None and models.max_loaded < 1:
        raise ConfigError(f"{file}: max_loaded: {models.max_loaded} is less than 1")
    _check_seconds(f"{file}: idle_seconds", models.idle_seconds)
    entries, plans = [], []
    for i, fields in enumerate(models.models):
        with _locate(f"{file}: models[{i}]"):
            entry, result = _read_entry(f"{file}: models[{i}]: ", fields, models.idle_seconds, namespace, parser, settings)
        entries.append(entry)
        plans.append(result)
    _check_names(file, entries)
    budgets = _budgets(file, models.memory, plans)
    _check_room(file, entries, budgets, models.max_loaded)
    return ModelList(entries=tuple(entries), budgets=budgets, max_loaded=models.max_loaded)


def describe_error(error: msgspec.ValidationError) -> str:
    """The field, then its problem."""
    words, _, path = str(error).partition(" - at `$")
    path = path.removesuffix("`").removeprefix(".")
    return f"{path}: {words}" if path else words


@contextmanager
def _locate(where: str) -> Iterator[None]:
    """Errors name the entry."""
    try:
        yield
    except ConfigError as e:
        raise ConfigError(*(p if p.startswith(where) else f"{where}: {p}" for p in e.problems)) from None
    except ThalwegError as e:
        raise type(e)(f"{where}: {e}") from None


def _read_entry(
    where: str, fields: dict[str, Any], idle_seconds: float, common_flags: argparse.Namespace, parser: flags.Parser,
    settings: ServerSettings,
) -> tuple[ModelEntry, Plan]:  # fmt: skip
    own = {k: v for k, v in fields.items() if k in ResidencyFields.__struct_fields__}
    try:
        residency = msgspec.convert(own, ResidencyFields)
    except msgspec.ValidationError as e:
        raise ConfigError(describe_error(e)) from None
    if residency.idle_seconds is not None:
        _check_seconds("idle_seconds", residency.idle_seconds)
    given = {k: v for k, v in fields.items() if k not in own}
    if not isinstance(given.get("model"), str) or not given["model"]:
        raise ConfigError(f"model: must name a directory or hub id (or {BUNDLED})")
    namespace = _read_flags(where, given, common_flags, parser)
    args = common.engine_args(namespace)
    if args.nnodes > 1:
        raise ConfigError("nnodes: a model of several machines needs a server for itself")
    own_settings = _settings_of(namespace, settings)
    _check_modules(args, own_settings)
    names = _names_of(args, residency)
    args = msgspec.structs.replace(
        args, served_model_name=names, enable_sleep_mode=True,
        standby_engine=bool(flags.explicit_value(namespace, "standby_engine")),
    )  # fmt: skip
    result = _plan(args)
    kept = residency.idle_seconds if residency.idle_seconds is not None else idle_seconds
    entry = ModelEntry(
        args=args, settings=own_settings, names=tuple(names),
        cost={result.platform: result.total * args.local_engines},
        max_model_len=result.max_model_len, max_num_seqs=result.max_num_seqs, pinned=residency.pinned, idle_seconds=kept,
    )  # fmt: skip
    return entry, result


def _read_flags(
    where: str, given: dict[str, Any], common_flags: argparse.Namespace, parser: flags.Parser
) -> argparse.Namespace:
    """The flags of an entry, over those of the command line. ConfigError, or the parser's own error."""
    words = config_file.words_of(where, given)
    parser.where = where
    namespace = parser.parse_args(flags.normalise(words, parser))
    parser.where = ""
    for flag in table().values():
        if flags.explicit_value(namespace, flag.dest) is None:
            if flag.dest != "model" and (value := flags.explicit_value(common_flags, flag.dest)) is not None:
                setattr(namespace, flag.dest, value)
        elif flag.dest in WHOLE:
            raise ConfigError(f"{flag.dest}: is a setting of the whole server; give it on the command line")
    flags.check_given(namespace)
    if flags.explicit_value(namespace, "lora_resolver"):
        raise ConfigError("lora_resolver: a server with several models has no resolvers; list adapters as lora_modules")
    return namespace


def _settings_of(namespace: argparse.Namespace, settings: ServerSettings) -> ServerSettings:
    """The server's settings with those of this model."""
    from thalweg.cli.serve import read_template

    given = {k: v for k, v in flags.server_settings(namespace).items() if k in PER_MODEL}
    if "chat_template" in given:
        given["chat_template"] = read_template(given["chat_template"])
    return msgspec.structs.replace(settings, **given)


def _check_modules(args: EngineArgs, settings: ServerSettings) -> None:
    modules = read_modules(settings.lora_modules or [])
    if modules and not args.enable_lora:
        raise ConfigError("lora_modules: adapters need enable_lora: true")
    for path in (Path(m.lora_path) for m in modules):
        if path.is_absolute() and not path.exists():
            raise ConfigError(f"lora_modules: {str(path)!r} does not exist")


def _names_of(args: EngineArgs, residency: ResidencyFields) -> list[str]:
    if residency.name is not None and args.served_model_name:
        raise ConfigError("name: served_model_name is given too; give one of them")
    names = [residency.name] if residency.name else list(args.served_model_name or [args.model])
    names += residency.aliases
    if empty := [n for n in names if not n.strip()]:
        raise ConfigError(f"aliases: {empty[0]!r} is empty")
    return list(dict.fromkeys(names))


def _plan(args: EngineArgs) -> Plan:
    result = plan(msgspec.structs.replace(args, model=str(checkpoint_config.find(args))))
    if result.problems:
        raise ConfigError(*result.problems)
    return result


def _check_seconds(where: str, seconds: float) -> None:
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"{where}: {seconds} is not a number of seconds (0: never)")


def _check_names(file: Path, entries: list[ModelEntry]) -> None:
    """Models and adapters of `lora_modules` have different names, as a request names either."""
    seen: dict[str, int] = {}
    for i, entry in enumerate(entries):
        for name in (*entry.names, *entry.module_names):
            if name in seen:
                raise ConfigError(f"{file}: models[{i}]: name {name!r} belongs to models[{seen[name]}] too; give another one")
            seen[name] = i


def _budgets(file: Path, memory: int | str | None, plans: list[Plan]) -> dict[str, int]:
    """Bytes of each platform: `memory`, or those of the device."""
    if isinstance(memory, str):
        try:
            memory = human_int(memory)
        except ValueError as e:
            raise ConfigError(f"{file}: memory: {e}") from None
    budgets = {result.platform: result.device_bytes for result in plans}
    if memory is None:
        return budgets
    if memory < 1:
        raise ConfigError(f"{file}: memory: {memory} is not a number of bytes")
    return {platform: min(memory, most) for platform, most in budgets.items()}


def _check_room(file: Path, entries: list[ModelEntry], budgets: dict[str, int], max_loaded: int | None) -> None:
    """Each model fits next to the pinned ones. ConfigError names one that does not."""
    pinned = [e for e in entries if e.pinned]
    for i, entry in enumerate(entries):
        together = pinned if entry.pinned else [*pinned, entry]
        if max_loaded is not None and len(together) > max_loaded:
            words = f"max_loaded is {max_loaded}, and {len(pinned)} models are pinned; pin fewer"
            raise ConfigError(f"{file}: models[{i}]: {entry.names[0]}: {words}")
        for platform, budget in budgets.items():
            needed = sum(e.cost.get(platform, 0) for e in together)
            if needed > budget:
                beside = " together with the pinned models" if len(together) > 1 else ""
                raise ConfigError(
                    f"{file}: models[{i}]: {entry.names[0]} needs {gib(needed)}{beside}, and memory is {gib(budget)}: set a "
                    "smaller kv_cache_memory_bytes or max_model_len"
                )
