"""`thalweg serve [MODEL]`."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import logging.config
import sys
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from thalweg.cli import common, flags
from thalweg.engine.client.standby import Standby
from thalweg.errors import ConfigError
from thalweg.host import envs
from thalweg.host.marks import mark
from thalweg.server.http.listen import listen_all
from thalweg.server.settings import ServerSettings
from thalweg.template.select import NAME
from thalweg.turns.table import load_plugin


def run(words: list[str]) -> int:
    mark("command line")
    gc.disable()  # as in the engine's process, until there is something to serve
    namespace = common.parse("serve", words, _arguments, about="Serve a model over HTTP, OpenAI-compatible.", server=True)
    if namespace.model_tag is not None and "--model" in words:
        raise ConfigError("--model: the model is already given as the first argument; give it once")
    result = settings(flags.server_settings(namespace))
    _logging(result)
    if flags.explicit_value(namespace, "models_config") is not None:
        return _run_models(namespace, result)
    args = common.engine_args(namespace, namespace.model_tag)
    if args.enable_sleep_mode and not result.server_dev_mode:
        print("warning: --enable-sleep-mode: /sleep and /wake_up need --server-dev-mode", file=sys.stderr)
    if result.lora_modules and not args.enable_lora:
        raise ConfigError("--lora-modules: adapters need --enable-lora")
    if result.lora_root and not args.enable_lora:
        raise ConfigError("--lora-root: adapters need --enable-lora")
    if result.headless:
        from thalweg.engine.executor.node import host_ranks

        return host_ranks(args)
    if args.node_rank:
        raise ConfigError(f"--node-rank: machine {args.node_rank} hosts ranks only; add --headless")
    common.say_bundled(args)
    # In this order: a port in use fails at once, and the engine's process imports its code while this one imports the web
    # framework.
    with listen_all(result) as sockets, Standby(args.device, args) as standby:
        from thalweg.server.serve import serve  # imports the web framework

        mark("server imported")
        return serve(args, result, sockets, standby)


def _run_models(namespace: argparse.Namespace, result: ServerSettings) -> int:
    """Serve the models of --models-config."""
    from thalweg.cli.models_config import read_models

    if namespace.model_tag is not None or flags.explicit_value(namespace, "model") is not None:
        raise ConfigError("--models-config: the file lists the models; omit MODEL")
    if result.headless:
        raise ConfigError("--models-config: not with --headless, which hosts ranks of one model")
    listed = read_models(namespace, common.parser_of("serve", _arguments, server=True), result)
    first = next((entry for entry in listed.entries if entry.pinned), listed.entries[0])
    with listen_all(result) as sockets, Standby(first.args.device) as standby:
        from thalweg.server.serve import serve_models

        return serve_models(listed, result, sockets, standby)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="directory or hub id; left out: thalweg-nano")


def settings(given: dict[str, Any]) -> ServerSettings:
    """ServerSettings of the flags and the environment. --chat-template as a file is read here."""
    given = dict(given)
    given.setdefault("api_key", envs.api_keys())
    given.setdefault("server_dev_mode", envs.dev_mode())
    given.setdefault("enable_lora_routes", envs.adapter_routes())
    if "middleware" in given:
        given["middleware"] = [_import_middleware(path) for path in given["middleware"]]
    for name in ("tool_parser_plugin", "reasoning_parser_plugin"):
        if given.get(name):
            load_plugin(f"--{name.replace('_', '-')}", given[name])
    if "chat_template" in given:
        given["chat_template"] = read_template(given["chat_template"])
    if "disable_access_log_for_endpoints" in given and given.get("disable_uvicorn_access_log"):
        print("warning: --disable-uvicorn-access-log leaves --disable-access-log-for-endpoints nothing to do", file=sys.stderr)
    return ServerSettings(**given)


def _import_middleware(path: str) -> Any:
    """The class or coroutine function at an import path, package.module.Name."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, ValueError, AttributeError) as e:
        raise ConfigError(f"--middleware: {path!r} is not an import path of the form package.module.Name: {e}") from None
    if not (isinstance(found, type) or iscoroutinefunction(found)):
        raise ConfigError(f"--middleware: {path!r} is neither a class nor a coroutine function (request, call_next)")
    return found


def _logging(result: ServerSettings) -> None:
    """Configure the logs of this process. The engine's process always writes its few lines to stderr."""
    if result.log_error_stack:
        logging.getLogger("thalweg.server.errors.stacks").setLevel(logging.DEBUG)
    if result.log_config_file is None:
        return
    try:
        config = json.loads(Path(result.log_config_file).read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError(f"it must hold a JSON object, not {type(config).__name__}")
        logging.config.dictConfig({"disable_existing_loggers": False, **config})
    except (OSError, ValueError, TypeError, AttributeError, ImportError) as e:
        raise ConfigError(f"--log-config-file: {result.log_config_file!r}: {e}") from None


def read_template(value: str) -> str:
    """The template: the text itself if it holds template syntax, else the file of that name, else the name of one of the
    model's, which is not known yet."""
    if "{" in value or "\n" in value:
        return value
    try:
        return Path(value).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        if NAME.fullmatch(value) and not Path(value).exists():
            return value
        raise ConfigError(f"--chat-template: {value!r} is neither a template nor a readable file: {e}") from None
