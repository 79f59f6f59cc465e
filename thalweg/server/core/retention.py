"""Hints of agents and of the frameworks that run them: how long KV blocks are kept after a request, and its priority."""

from __future__ import annotations

from collections.abc import Mapping

from thalweg.server.core.schema import Int32, WireModel

PAUSE_SECONDS = 300.0
"""For a conversation that will continue: one with tools, or with the name of a session."""
RETENTIONS = {"in_memory": PAUSE_SECONDS, "in-memory": PAUSE_SECONDS, "24h": 86400.0}
"""Values of OpenAI's prompt_cache_retention -> seconds. Others ask for what happens anyway."""
SESSION_HEADERS = ("x-session-id", "session_id")
"""Names of sessions, as agents send them to routers."""


class AgentHints(WireModel):
    """Dynamo's `nvext.agent_hints`. Its other hints are for routers."""

    priority: Int32 | None = None
    """Higher is sooner, contrary to the field `priority` of a request."""


class RequestExtensions(WireModel):
    """Dynamo's `nvext`."""

    agent_hints: AgentHints | None = None


def has_session(headers: Mapping[str, str]) -> bool:
    """Do these headers of a request name a session?"""
    return any(headers.get(name) for name in SESSION_HEADERS)
