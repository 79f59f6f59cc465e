"""What goes to the process that renders templates. Both sides read this, and neither imports more than msgspec for it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class RenderTask(msgspec.Struct, frozen=True, kw_only=True):
    """One rendering, complete in itself. messages None: only compile the template, and say whether it is one."""

    source: str
    variables: dict[str, Any]
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    content_format: Literal["string", "openai"] | None = None
    kwargs: dict[str, Any] = {}
    signs: dict[str, str] = {}
    """By kind of media: what stands for an item where the template reads strings."""
    now: str = "1970-01-01"
    """Local time, ISO 8601, for templates that write the date."""
    output: int = 0
    """Characters that it may write. The jail sets it."""
