"""The OpenAI Agents SDK on both of its routes: text, and an `output_type` together with a tool."""

from __future__ import annotations

from clients.client import ASK, STRICT, Client


def _client(name: str, *flags: str) -> Client:
    words = ["run_agents.py", "{url}", "{model}", ASK, *flags]
    return Client(
        name,
        "agents",
        "python",
        lambda url, model: [w.format(url=url, model=model) for w in words],
        ("agents",),
        script=STRICT,
        nano="--output-type" not in flags,
    )


CLIENTS = (
    _client("agents", "--api", "responses"),
    _client("agents-chat", "--api", "chat"),
    _client("agents-output-type", "--api", "responses", "--output-type"),
    _client("agents-output-type-chat", "--api", "chat", "--output-type"),
)
