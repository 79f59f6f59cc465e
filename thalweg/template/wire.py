"""The messages to the process that renders templates. Both sides import this module, which imports only msgspec."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class RenderTask(msgspec.Struct, frozen=True, kw_only=True):
    """One self-contained rendering. messages None: only compile the template, to validate it."""

    source: str
    variables: dict[str, Any]
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    content_format: Literal["string", "openai"] | None = None
    kwargs: dict[str, Any] = {}
    signs: dict[str, str] = {}
    """Kind of media -> placeholder, for templates that read strings."""
    now: str = "1970-01-01"
    """Local time, ISO 8601, for templates that write the date."""
    output: int = 0
    """Most characters of output. The jail sets it."""
