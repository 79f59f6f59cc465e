"""`thalweg serve [MODEL]`."""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path
from typing import Any

from thalweg import envs
from thalweg.engine.client.standby import Standby
from thalweg.errors import ConfigError
from thalweg.marks import mark
from thalweg.server.cli import common, flags
from thalweg.server.listen import listening
from thalweg.server.settings import ServerSettings


def run(words: list[str]) -> int:
    mark("command line")
    gc.disable()  # as in the engine's process, until there is something to serve
    namespace = common.parse("serve", words, _arguments, about="Serve a model over HTTP, OpenAI-compatible.", server=True)
    if namespace.model_tag is not None and "--model" in words:
        raise ConfigError("--model: the model is already given as the first argument; give it once")
    args = common.engine_args(namespace, namespace.model_tag)
    made = settings(flags.server_settings(namespace))
    common.say_bundled(args)
    # In this order: a taken port is told at once, and the engine's code loads while the web framework does here.
    with listening(made) as sock, Standby(args.device, args) as standby:
        from thalweg.server.serve import serve  # imports the web framework

        mark("server imported")
        return serve(args, made, sock, standby)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="directory or hub id; left out: thalweg-nano")


def settings(given: dict[str, Any]) -> ServerSettings:
    """ServerSettings of the flags and the environment; --chat-template as a file is read here."""
    given = dict(given)
    given.setdefault("api_key", envs.api_keys())
    if "chat_template" in given:
        given["chat_template"] = _template(given["chat_template"])
    for name in ("allowed_origins", "allowed_methods", "allowed_headers"):
        value = given.get(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(v, str) for v in value)):
            raise ConfigError(f"--{name.replace('_', '-')}: must be a JSON list of strings")
    if not isinstance(given.get("default_chat_template_kwargs", {}), dict):
        raise ConfigError("--default-chat-template-kwargs: must be a JSON object")
    if "disable_access_log_for_endpoints" in given and given.get("disable_uvicorn_access_log"):
        print("warning: --disable-uvicorn-access-log leaves --disable-access-log-for-endpoints nothing to do", file=sys.stderr)
    return ServerSettings(**given)


def _template(value: str) -> str:
    """The template: the text itself if it holds template syntax, else the file of that name."""
    if "{" in value or "\n" in value:
        return value
    try:
        return Path(value).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"--chat-template: {value!r} is neither a template nor a readable file: {e}") from None
