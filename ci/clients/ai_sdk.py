"""Vercel's `ai` SDK with its providers for this server's four dialects: tool loops, objects, and loops that end in an object.

Some have two ways, a row each. `openai-responses` names what the assistant said by its id, and the unstored one sends it again.
`compatible` sends a schema and `compatible-json` asks for JSON. `anthropic` makes an object a tool's arguments. With a model
that it knows it sends a schema, and says that a tool is strict.
"""

from __future__ import annotations

import json

from clients.client import ANSWER, ASK, SHELL, STRICT, TALK, Call, Client, Script

PACKAGES = {
    "openai-chat": "@ai-sdk/openai",
    "openai-responses": "@ai-sdk/openai",
    "openai-responses-unstored": "@ai-sdk/openai",
    "compatible": "@ai-sdk/openai-compatible",
    "compatible-json": "@ai-sdk/openai-compatible",
    "anthropic": "@ai-sdk/anthropic",
    "anthropic-known": "@ai-sdk/anthropic",
    "cohere": "@ai-sdk/cohere",
}
OBJECT = Script(first=(TALK, (SHELL,)), last=(TALK, json.dumps(ANSWER), (Call("json", ANSWER),)))
"""Only a constraint makes the model call or write an object."""
WORKS = {"text": Script(), "object": OBJECT, "object-with-tool": OBJECT}
KNOWN = "claude-sonnet-4-5"
LOOSE = frozenset({"anthropic", "cohere"})
"""They do not say that a tool is strict."""


def _client(provider: str, work: str, script: Script) -> Client:
    if work == "text" and provider not in LOOSE:
        script = STRICT
    return Client(
        f"ai-{provider}" + (f"-{work}" if work != "text" else ""),
        "ai",
        "node",
        lambda url, model: ["run_ai_sdk.mjs", url, model, ASK, provider, work],
        ("ai", "zod", *sorted(set(PACKAGES.values()))),
        model=KNOWN if provider == "anthropic-known" else "fake",
        script=script,
        nano=work == "text",
    )


CLIENTS = tuple(_client(p, work, script) for p in PACKAGES for work, script in WORKS.items())
