"""The turn format of a chat template that no row is written for, as far as what it writes can be read back."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from thalweg.errors import ThalwegError
from thalweg.turns.derive.calls import calls_of
from thalweg.turns.derive.probes import CONTENT, Probes, Render, same_end
from thalweg.turns.derive.reasoning import reasoning_of, wraps_of
from thalweg.turns.derive.trial import holds
from thalweg.turns.format import Turn

SECONDS = 2.0
"""A template that is not done by then, for all that is asked of it, is left alone."""
CALLS, REASONING = ("tool_calls",), ("reasoning", "think")
"""Words of templates that write calls, and of those that know of reasoning."""


class SlowError(ThalwegError):
    """The template has taken too long already."""


def derive(source: str, render: Render, known: Turn | None = None) -> Turn | None:
    """A format that reads back what the template writes, or None. source: the template's. render: writes with it.
    known: what is known of the format. What it has is kept."""
    known = known or Turn()
    ends = time.monotonic() + SECONDS

    def bounded(messages: list[dict[str, Any]], tools: list[dict[str, Any]], prompt: bool) -> str:
        if time.monotonic() > ends:
            raise SlowError("the template is slow")
        return render(messages, tools, prompt)

    wants_calls = known.calls is None and any(w in source for w in CALLS)
    wants_reasoning = known.reasoning is None and any(w in source for w in REASONING)
    if known.headers is not None or not (wants_calls or wants_reasoning):
        return None
    try:
        probes = Probes(bounded)
        return _found(probes, source, known, wants_calls, wants_reasoning)
    except ThalwegError:
        return None


def _found(probes: Probes, source: str, known: Turn, wants_calls: bool, wants_reasoning: bool) -> Turn | None:
    plain, calls = probes.turn(CONTENT), known.calls
    end = called_end = plain.rpartition(CONTENT)[2].strip() if plain is not None else ""
    if wants_calls and (derived := calls_of(probes)) is not None:
        calls, called_end = derived
        end = same_end(end, called_end) or end
    reasoning = known.reasoning or (reasoning_of(probes, source) if wants_reasoning else None)
    for thoughts, called in ((reasoning, calls), (known.reasoning, calls), (reasoning, known.calls)):
        if (thoughts, called) == (known.reasoning, known.calls):
            continue
        turn = replace(known, reasoning=thoughts, calls=called)
        if not known.wraps:
            turn = replace(turn, wrap=wraps_of(probes, thoughts, end))
        if holds(probes, turn, end, called_end):
            return turn
    return None
