"""What of a turn a grammar decides. A reader that knows it need not guess what is a mark and what is text."""

from __future__ import annotations

from enum import Flag, auto


class GrammarScope(Flag):
    """Parts of a turn that `turns.grammar`, or a form that the request asked for, decides."""

    NOTHING = 0
    CALLS = auto()
    """Calls begin only as the writer of the row begins them, and their arguments fit their schemas."""
    CONTENT = auto()
    """Content has a form: once begun, it is content to the end, whatever it looks like."""
    THOUGHT = auto()
    """The grammar covers the whole turn, or all after reasoning: reasoning may come first, and only its own terminal ends
    it."""
