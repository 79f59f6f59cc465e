"""/server_info and /tokenizer_info: the configuration of this server."""

from __future__ import annotations

import os
import platform
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import thalweg
from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import respond

HIDDEN = ("api_key", "middleware")


async def server_info(serving: Serving, http: Request) -> Response:
    """The resolved configuration, the server's settings without keys, and the system. config_format: text | json."""
    form = http.query_params.get("config_format", "text")
    if form not in ("text", "json"):
        raise ApiError("config_format: must be text or json", "config_format")
    config: Any = serving.engine.config
    shown = repr(config) if form == "text" else msgspec.to_builtins(config, enc_hook=str, str_keys=True)
    settings = msgspec.structs.asdict(serving.settings)
    return respond(
        {
            "version": thalweg.__version__,
            "config": shown,
            "vllm_config": shown,
            "server": {k: v for k, v in settings.items() if k not in HIDDEN},
            "system_env": {
                "python_version": platform.python_version(),
                "os": platform.platform(),
                "machine": platform.machine(),
                "cpu_count": os.cpu_count(),
            },
        }
    )


async def tokenizer_info(serving: Serving, http: Request) -> Response:
    """tokenizer_config.json as the model has it, and the chat template in use."""
    tokenizer, chat = serving.tokenizer("tokenizer"), serving.conversation.chat
    kind = tokenizer.config.get("tokenizer_class") or type(tokenizer).__name__
    return respond({**tokenizer.config, "tokenizer_class": kind, "chat_template": chat.source if chat is not None else None})
