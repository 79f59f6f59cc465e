"""The parts of a turn that a grammar decides. Knowing them, a reader need not guess which strings are terminals."""

from __future__ import annotations

from enum import Flag, auto


class GrammarScope(Flag):
    """Parts of a turn that `turns.grammar`, or a form that the request asked for, decides."""

    NOTHING = 0
    CALLS = auto()
    """Calls begin only as the writer of the row begins them, and their arguments fit their schemas."""
    CONTENT = auto()
    """Content has a form: once begun, all text to the end is content."""
    THOUGHT = auto()
    """The grammar covers the whole turn, or all after reasoning: reasoning may come first, and only its own terminal ends
    it."""
