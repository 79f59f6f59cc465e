"""Real clients against this server. `python ci/clients.py` runs them. One file per family of clients: its rows, and what they
need. `programs` has what is run inside a client's own environment."""

from clients import (
    agents,
    ai_sdk,
    claude_code,
    codex,
    cohere_sdk,
    instructor_modes,
    langchain,
    open_webui,
    opencode,
)
from clients.client import Client

CLIENTS: tuple[Client, ...] = (
    *codex.CLIENTS,
    *claude_code.CLIENTS,
    *opencode.CLIENTS,
    *agents.CLIENTS,
    *langchain.CLIENTS,
    *cohere_sdk.CLIENTS,
    *instructor_modes.CLIENTS,
    *ai_sdk.CLIENTS,
    *open_webui.CLIENTS,
)
