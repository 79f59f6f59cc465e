"""What goes to the process that renders templates and what comes back: length-prefixed MessagePack of two closed
types.

Both sides read this. Neither imports more than msgspec for it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from thalweg.host.confined import framed


class Limits(msgspec.Struct, frozen=True):
    """What one job may use. seconds: processor time. wall: seconds of the clock. memory: bytes of address space over an idle
    process. output: characters."""

    seconds: float
    wall: float
    memory: int
    output: int


class Job(msgspec.Struct, frozen=True, kw_only=True):
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
    limits: Limits = Limits(0.0, 0.0, 0, 0)
    """The jail sets it."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """last: this process ends now. Use another."""

    text: str
    last: bool = False


class Refused(msgspec.Struct, frozen=True, tag=True):
    """kind: why it failed. The template does not parse, it or its caller refuses these arguments, or a limit was
    passed."""

    kind: Literal["template", "request", "limit"]
    message: str
    param: str | None = None
    last: bool = False


def frame(message: Job | Done | Refused) -> bytes:
    """Header and body. ValueError, TypeError, OverflowError or RecursionError for values that have no place on the wire."""
    return framed(msgspec.msgpack.encode(message))
