"""Derives the turn format of a chat template without a row, if the reader can read back the rendered turns."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

from thalweg.errors import ThalwegError
from thalweg.turns.derive.calls import calls_of
from thalweg.turns.derive.probes import CONTENT, Probes, Render, same_end
from thalweg.turns.derive.reasoning import reasoning_of, wraps_of
from thalweg.turns.derive.trial import holds
from thalweg.turns.format import Calls, GemmaArgs, JsonArgs, JsonCalls, PythonCalls, TaggedArgs, TurnFormat

log = logging.getLogger(__name__)
SECONDS = 2.0
"""Time limit for all renderings of one template. Slower templates get no derived format."""
KEPT = 32
_FOUND: dict[tuple[str, TurnFormat, bool, bool], TurnFormat | None] = {}
"""Cache of derived formats: `LLM.chat` derives at each call."""
CALLS = "tool_calls"
"""Occurs in every template that renders calls."""


class TemplateTimeoutError(ThalwegError):
    """The template exceeded its time limit."""


def derive(source: str, render: Render, known: TurnFormat, calls: bool = True, reasoning: bool = True) -> TurnFormat | None:
    """A format that reads back the text that the template renders, or None. Raises no error. source: the template's source.
    render: renders with it. known: the known parts of the format, left unchanged. calls, reasoning: derive them?"""
    calls = calls and known.calls is None and CALLS in source
    reasoning = reasoning and known.reasoning is None
    if known.headers is not None or not (calls or reasoning):
        return None
    key = (source, known, calls, reasoning)
    if key not in _FOUND:
        try:
            found = _found(Probes(_add_deadline(render)), source, known, calls, reasoning)
        except ThalwegError as e:
            log.debug("nothing is derived from the chat template: %s", e)
            return None
        except Exception:  # a template may render anything, and a server starts without this
            log.warning("deriving a format from the chat template failed", exc_info=True)
            return None
        if len(_FOUND) >= KEPT:
            _FOUND.clear()
        _FOUND[key] = found
    return _FOUND[key]


def _add_deadline(render: Render) -> Render:
    ends = time.monotonic() + SECONDS

    def render_in_time(messages: list[dict[str, Any]], tools: list[dict[str, Any]], prompt: bool) -> str:
        if time.monotonic() > ends:
            raise TemplateTimeoutError("the template is slow")
        return render(messages, tools, prompt)

    return render_in_time


def _found(probes: Probes, source: str, known: TurnFormat, wants_calls: bool, wants_reasoning: bool) -> TurnFormat | None:
    plain, calls = probes.turn(CONTENT), known.calls
    end = called_end = plain.rpartition(CONTENT)[2].strip() if plain is not None else ""
    if wants_calls and (derived := calls_of(probes)) is not None:
        calls, called_end = derived
        end = same_end(end, called_end) or end
    reasoning = known.reasoning or (reasoning_of(probes, source, calls) if wants_reasoning else None)
    for thoughts, called in ((reasoning, calls), (known.reasoning, calls), (reasoning, known.calls)):
        if (thoughts, called) == (known.reasoning, known.calls):
            continue
        turn = replace(known, reasoning=thoughts, calls=called)
        if not known.wraps:
            turn = replace(turn, wrap=wraps_of(probes, thoughts, end))
        if holds(probes, turn, end, called_end):
            return turn
    return None


def shape(calls: Calls) -> str:
    """The markers around calls and the shape of their arguments, for people."""
    words = {
        JsonCalls: "JSON objects with the name in them",
        JsonArgs: "a name and a JSON object",
        TaggedArgs: "arguments in tags",
        PythonCalls: "calls as in Python",
        GemmaArgs: "bare keys, strings between marks",
    }
    first, last = calls.section
    around = " ".join(t for t in (first, calls.open, "...", calls.close, last) if t)
    return f"{around} ({words[type(calls.body)]})".replace("\n", "\\n")
