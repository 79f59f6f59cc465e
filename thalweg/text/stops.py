"""Stop strings over streamed text: text that may still become a stop string is held back until it does or cannot.

An Aho-Corasick automaton (Aho and Corasick, 1975), so the work is linear in the text whatever the strings are, and the
answer does not depend on how the text was cut into pieces. Knows no tokens.

The match that ends first counts; of several that end at the same character, the longest.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """The automaton of one set of stop strings. Immutable; choices of a request share it."""

    __slots__ = ("fail", "first", "held", "match", "next")

    def __init__(self, stops: Sequence[str]) -> None:
        self.next: list[dict[str, int]] = [{}]
        self.match: list[str | None] = [None]
        """Longest stop string that ends in this state."""
        depth = [0]
        for stop in stops:
            state = 0
            for c in stop:
                if c not in self.next[state]:
                    self.next[state][c] = len(self.next)
                    self.next.append({})
                    self.match.append(None)
                    depth.append(depth[state] + 1)
                state = self.next[state][c]
            self.match[state] = stop
        self.fail, self.held = [0] * len(self.next), [0] * len(self.next)
        """held: characters that may still begin a stop string."""
        self._link(depth)
        self.first = frozenset(self.next[0])

    def _link(self, depth: list[int]) -> None:
        """Breadth first: the longest proper suffix that is also a state, and what it matches."""
        queue = list(self.next[0].values())
        for state in queue:
            fail = self.fail[state]
            self.match[state] = self.match[state] or self.match[fail]
            self.held[state] = depth[state] if self.next[state] else self.held[fail]
            for c, child in self.next[state].items():
                self.fail[child] = self.step(fail, c)
                queue.append(child)

    def step(self, state: int, c: str) -> int:
        while state and c not in self.next[state]:
            state = self.fail[state]
        return self.next[state].get(c, 0)


class StopStream:
    """One text on its way through. `push` until `matched`; then or at the end of the text, `finish`."""

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
        """The text that was held back, now that nothing follows; "" after a match."""
        held, self._held, self._state = self._held, "", 0
        return held
