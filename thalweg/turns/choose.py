"""Chooses the turn format of a model: by flag, else by the checkpoint's response_template, else by the chat template. Of the
template, markers in its source decide, else the text that it renders."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from thalweg.errors import ConfigError
from thalweg.turns import table
from thalweg.turns.derive.calls import NAME
from thalweg.turns.derive.probes import Render
from thalweg.turns.derive.template import derive, shape
from thalweg.turns.format import TurnFormat
from thalweg.turns.response_template import UnreadableError, turn_of

log = logging.getLogger(__name__)
DERIVED = "what the chat template writes"
NOTHING = "the chat template: of no known format, and none could be derived from what it writes"
AUTO, NONE = "auto", "none"
"""Names of parsers: detect the format, and content only."""


def choose(
    tool_parser: str | None,
    reasoning_parser: str | None,
    template: str | None,
    response_template: Any = None,
    render: Render | None = None,
) -> TurnFormat:
    """tool_parser, reasoning_parser: names of the table, or auto, none, hf. None and "": auto. template: the chat template's
    source. response_template: the checkpoint's. render: renders messages with the chat template. Parts of the format that
    nothing else gives are derived from it. ConfigError names the flag."""
    tool_parser, reasoning_parser = tool_parser or AUTO, reasoning_parser or AUTO
    hf = (tool_parser == table.TEMPLATE, reasoning_parser == table.TEMPLATE)
    found = _own(response_template, hf)
    if found is None:
        found = table.match_template(template) if template else TurnFormat(source="there is no chat template")
        if template and render is not None:
            found = _complete(found, template, render, tool_parser == AUTO, reasoning_parser == AUTO)
    turn, sources = found, []
    if tool_parser not in (AUTO, table.TEMPLATE):
        calls = None if tool_parser == NONE else table.calls_named(tool_parser)
        turn = replace(turn, calls=calls)
        sources.append("--tool-call-parser")
    if reasoning_parser not in (AUTO, table.TEMPLATE):
        if reasoning_parser == NONE:
            turn = replace(turn, reasoning=None, wrap=(), header=None)
        else:
            reasoning, wraps, header = table.reasoning_named(reasoning_parser)
            turn = replace(turn, reasoning=reasoning, wrap=wraps, header=header)
        sources.append("--reasoning-parser")
    if len(sources) < 2:
        sources.append(found.source)
    return replace(turn, source=", ".join(sources))


def _complete(found: TurnFormat, template: str, render: Render, calls: bool, reasoning: bool) -> TurnFormat:
    """The format with the parts derived from the template's rendered text. calls, reasoning: may they be derived?"""
    result = derive(template, render, found, calls, reasoning)
    if result is not None:
        known = found.calls is not None or found.reasoning is not None
        return replace(result, source=f"{found.source}, and by what it writes" if known else DERIVED)
    return replace(found, source=NOTHING) if found.calls is None and found.reasoning is None else found


def _own(response_template: Any, hf: tuple[bool, bool]) -> TurnFormat | None:
    """The format of the checkpoint's response_template. ConfigError if a flag asks for it and it is absent or unreadable."""
    flag = next((f for f, requested in zip(("--tool-call-parser", "--reasoning-parser"), hf, strict=True) if requested), None)
    if response_template is None:
        if flag:
            raise ConfigError(f"{flag}: this model's tokenizer_config.json has no response_template; name a format, or auto")
        return None
    try:
        return turn_of(response_template)
    except UnreadableError as e:
        if flag:
            raise ConfigError(f"{flag}: response_template: {e}; name a format") from None
        log.info("the checkpoint's response_template is not read: %s", e)
        return None


def describe(turn: TurnFormat) -> str:
    """The format in one line, for logs."""
    calls = turn.calls.name if turn.calls is not None else "none"
    if turn.calls is not None and calls == NAME:
        calls = f"{NAME}, {shape(turn.calls)}"
    reasoning = "none"
    if turn.headers is not None:
        reasoning = f"messages whose header has {turn.headers.reasoning}"
    elif turn.reasoning is not None:
        reasoning = f"{turn.reasoning.open} ... {turn.reasoning.close}"
    return f"tool calls: {calls}; reasoning: {reasoning} (by {turn.source})"
