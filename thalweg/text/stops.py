"""Finds stop strings in streamed text. Text that may still become a stop string is held back until that is decided.

An Aho-Corasick automaton (Aho and Corasick, 1975), so the work is linear in the text for any strings. The result does not
depend on the cuts of the text. It knows no tokens.

The match that ends first applies, and of several with the same end, the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

_STATE = 1 << 21
"""Greater than every code point."""


class StopStrings:
    """The automaton of a set of stop strings. Immutable, and shared by the choices of a request.

    It costs some 150 bytes and half a microsecond per character. `SamplingParams` limits their number."""

    __slots__ = ("fail", "first", "held", "match", "next")

    def __init__(self, stops: Sequence[str]) -> None:
        self.next: dict[int, int] = {}
        """state * _STATE + code point -> next state. One flat table, because a dictionary per state needs ten times the
        memory."""
        self.match: list[str | None] = [None]
        """State -> longest stop string that ends in it."""
        parent, edge = [0], [0]
        for stop in stops:
            state = 0
            for c in map(ord, stop):
                child = self.next.get(state * _STATE + c)
                if child is None:
                    child = self.next[state * _STATE + c] = len(parent)
                    parent.append(state)
                    edge.append(c)
                    self.match.append(None)
                state = child
            self.match[state] = stop
        self.fail, self.held = [0] * len(parent), [0] * len(parent)
        """fail: state -> state of its longest proper suffix. held: state -> characters that may still begin a stop string."""
        self._link(parent, edge)
        self.first = frozenset(chr(c) for state, c in zip(parent[1:], edge[1:], strict=True) if state == 0)

    def _link(self, parent: list[int], edge: list[int]) -> None:
        """Set `fail` of each state breadth first, to the longest proper suffix with a state, and inherit its match."""
        depth, inner = [0] * len(parent), set(parent)
        for state in range(1, len(parent)):  # a state comes after its parent
            depth[state] = depth[parent[state]] + 1
        for state in sorted(range(1, len(parent)), key=depth.__getitem__):
            fail = self.fail[state] = self._step(self.fail[parent[state]], edge[state]) if parent[state] else 0
            self.match[state] = self.match[state] or self.match[fail]
            self.held[state] = depth[state] if state in inner else self.held[fail]

    def step(self, state: int, c: str) -> int:
        return self._step(state, ord(c))

    def _step(self, state: int, c: int) -> int:
        while True:
            child = self.next.get(state * _STATE + c)
            if child is not None or not state:
                return child or 0
            state = self.fail[state]


@lru_cache(maxsize=64)
def automaton(stops: tuple[str, ...]) -> StopStrings:
    """A cached automaton, as applications repeat the same stop strings."""
    return StopStrings(stops)


class ReasoningStream:
    """Separates reasoning text from the answer after it, incrementally. The result does not depend on the cuts of the text."""

    __slots__ = ("_close", "_held", "_inside", "_opens")

    def __init__(self, opens: Sequence[str], close: str, inside: bool = False) -> None:
        """opens, close: terminals of the reasoning. It comes first, after white space. inside: it has begun."""
        self._opens, self._close, self._inside = tuple(opens), close, inside
        self._held: str | None = ""
        """Text that may be part of a terminal. None: the answer has begun."""

    def push(self, text: str) -> tuple[str, str]:
        """(text before the answer, text of the answer)."""
        if self._held is None:
            return "", text
        text, self._held = self._held + text, ""
        if not self._inside:
            begun = text.lstrip()
            if not any(begun.startswith(o) for o in self._opens):
                if any(o.startswith(begun) for o in self._opens):
                    self._held = text
                    return "", ""
                self._held = None
                return "", text
            self._inside = True
        at = text.find(self._close)
        if at >= 0:
            self._held = None
            at += len(self._close)
            return text[:at], text[at:]
        keep = next((n for n in range(min(len(self._close) - 1, len(text)), 0, -1) if text.endswith(self._close[:n])), 0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], ""

    def finish(self) -> str:
        """The text held back, at the end of the text."""
        held, self._held = self._held or "", None
        return held


class StopStream:
    """The search in one text. `push` until `matched`. Then, or at the end of the text, call `finish`."""

    __slots__ = ("_held", "_include", "_state", "_stops", "matched")

    def __init__(self, stops: StopStrings, include: bool = False) -> None:
        """include: keep the stop string in the text."""
        self._stops, self._include = stops, include
        self._state, self._held = 0, ""
        self.matched: str | None = None

    def push(self, text: str, counts: bool = True) -> str:
        """The text safe to show now. counts=False: matches that end in this text are ignored (min_tokens).

        After a match, `push` must not be called again: the text after the match is dropped."""
        stops, state = self._stops, self._state
        if not state and not self._held and stops.first.isdisjoint(text):
            return text
        text_start = len(self._held)
        buffer = self._held + text
        for i in range(text_start, len(buffer)):
            state = stops.step(state, buffer[i])
            matched = stops.match[state] if counts else None
            if matched is not None:
                self.matched, self._held = matched, ""
                return buffer[: i + 1] if self._include else buffer[: i + 1 - len(matched)]
        self._state = state
        cut = len(buffer) - stops.held[state]
        self._held = buffer[cut:]
        return buffer[:cut]

    def finish(self) -> str:
        """The text held back, at the end of the text. "" after a match."""
        held, self._held, self._state = self._held, "", 0
        return held
