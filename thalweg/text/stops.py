"""Stop strings over streamed text: text that may still become a stop string is held back until it does or cannot.

An Aho-Corasick automaton (Aho and Corasick, 1975), so the work is linear in the text whatever the strings are. The
answer does not depend on how the text was cut into pieces. Knows no tokens.

The match that ends first counts, and of several that end at the same character, the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

_STATE = 1 << 21
"""Bound above every code point."""


class StopStrings:
    """The automaton of one set of stop strings. Immutable. Choices of a request share it.

    Some 150 bytes and half a microsecond for each character: `SamplingParams` bounds how many there may be."""

    __slots__ = ("fail", "first", "held", "match", "next")

    def __init__(self, stops: Sequence[str]) -> None:
        self.next: dict[int, int] = {}
        """Next states by state * _STATE + code point. One flat table, because a dictionary per state takes ten times
        as much."""
        self.match: list[str | None] = [None]
        """Longest stop string that ends in this state."""
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
        """held: characters that may still begin a stop string."""
        self._link(parent, edge)
        self.first = frozenset(chr(c) for state, c in zip(parent[1:], edge[1:], strict=True) if state == 0)

    def _link(self, parent: list[int], edge: list[int]) -> None:
        """Breadth first: the longest proper suffix that is also a state, and what it matches."""
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
    """The same for the same strings: an application sends the same ones again and again."""
    return StopStrings(stops)


class ReasoningStream:
    """Tells text that stands before an answer from the answer, piece by piece. The answer does not depend on how it was cut."""

    __slots__ = ("_close", "_held", "_inside", "_opens")

    def __init__(self, opens: Sequence[str], close: str, inside: bool = False) -> None:
        """opens, close: what begins and ends such text. It is the first that comes, after white space. inside: it has begun."""
        self._opens, self._close, self._inside = tuple(opens), close, inside
        self._held: str | None = ""
        """What may be part of a terminal. None: the answer has begun."""

    def push(self, text: str) -> tuple[str, str]:
        """Text before the answer, and of the answer."""
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
        """What was held back, now that nothing follows."""
        held, self._held = self._held or "", None
        return held


class StopStream:
    """One text on its way through. `push` until `matched`, then or at the end of the text `finish`."""

    __slots__ = ("_held", "_include", "_state", "_stops", "matched")

    def __init__(self, stops: StopStrings, include: bool = False) -> None:
        """include: the stop string itself stays in the text."""
        self._stops, self._include = stops, include
        self._state, self._held = 0, ""
        self.matched: str | None = None

    def push(self, text: str, counts: bool = True) -> str:
        """Text that is safe to show now. counts=False: matches that end in this text are ignored (min_tokens).
        After a match nothing more may be pushed: the text behind it is dropped."""
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
        """The text that was held back, now that nothing follows. "" after a match."""
        held, self._held, self._state = self._held, "", 0
        return held
