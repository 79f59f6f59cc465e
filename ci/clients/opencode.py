"""OpenCode, on chat completions."""

from __future__ import annotations

import json

from clients.client import ASK, COMMAND, Call, Client, Script


def _words(url: str, model: str) -> list[str]:
    return ["opencode", "run", "--model", f"local/{model}", ASK]


def _environment(url: str, model: str) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "local",
        "options": {"baseURL": url + "/v1", "apiKey": "none"},
        "models": {model: {"name": model, "limit": {"context": 60000, "output": 4000}}},
    }
    config = {"provider": {"local": provider}, "permission": {"bash": "allow"}, "autoupdate": False, "share": "disabled"}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}


SCRIPT = Script(first=((Call("bash", {"command": COMMAND, "description": "echo"}),),))
CLIENTS = (Client("opencode", "opencode", "program", _words, environment=_environment, script=SCRIPT, once=False),)
