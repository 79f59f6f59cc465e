"""After an engine died: which sequences go on together, which must first run alone, and which are given up.

A death from outside (SIGKILL, a stopped process) says nothing about the requests: they all go on. A crash while
sequences run makes each of them a suspect. Suspects run alone, one after another. One that gets a few tokens further
is cleared and waits. One that crashes the engine alone is convicted, and only it fails. Then everyone goes on
together.

Pure bookkeeping over handles: knows no process, no clock, no request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

PROOF = 4
"""New tokens a suspect must get alone to be cleared: more than any pipeline depth, so the step that crashed was repeated."""


KILLS = 3
"""Kills from outside that convict a suspect: while it ran alone, without a token in between. Fewer are bad luck: whoever
kills engines may well kill two in a row."""


@dataclass(slots=True)
class Verdict:
    """What the caller does now. submit: in this order, prompt and emitted tokens. The rest of the open handles wait."""

    submit: list[int] = field(default_factory=list)
    convicted: list[int] = field(default_factory=list)
    hold: int | None = None
    """Take this one back from the engine (abort). Its end is then told through `ended`."""


class Recovery:
    """One engine's history of deaths. `on_trial` is the handle that runs alone, if any. Meanwhile new requests wait."""

    def __init__(self) -> None:
        self.on_trial: int | None = None
        self._proof = 0
        self._kills = 0
        self._suspects: deque[int] = deque()
        self._progress = False

    def handle_death(self, running: Sequence[int], everyone: Sequence[int], *, crashed: bool) -> Verdict:
        """The engine is gone. running: sequences it had begun. everyone: all open ones, in order of arrival. crashed:
        it ended by itself (a signal other than SIGKILL, an error), not by somebody's hand."""
        progress, self._progress = self._progress, False
        if self.on_trial is not None:
            return self._died_in_trial(self.on_trial, everyone, crashed)
        if everyone and (crashed or not progress):
            begun = set(running) & set(everyone) or set(everyone)  # it may have choked on what it had not begun
            self._suspects = deque(h for h in everyone if h in begun)
            return self._next(everyone)
        return Verdict(submit=list(everyone))

    def _died_in_trial(self, accused: int, everyone: Sequence[int], crashed: bool) -> Verdict:
        """A crash convicts. So do KILLS kills from outside."""
        kills = self._kills + 1
        if accused in everyone and not crashed and kills < KILLS:
            self._suspects.appendleft(accused)
            verdict = self._next(everyone)
            self._kills = kills
            return verdict
        convicted = [accused] if accused in everyone else []
        verdict = self._next([h for h in everyone if h not in convicted])
        verdict.convicted = convicted
        return verdict

    @property
    def listening(self) -> bool:
        """Does a token matter now? Most of the time none does."""
        return self.on_trial is not None or not self._progress

    def token(self, handle: int) -> Verdict:
        """A sequence got a token."""
        self._progress = True
        if handle == self.on_trial:
            self._proof, self._kills = self._proof + 1, 0
            if self._proof == PROOF:
                return Verdict(hold=handle)
        return Verdict()

    def handle_end(self, handle: int, everyone: Sequence[int]) -> Verdict:
        """The engine let go of a sequence: it finished, or was taken back."""
        return self._next(everyone) if handle == self.on_trial else Verdict()

    def _next(self, everyone: Sequence[int]) -> Verdict:
        """The next suspect alone. After the last one, everybody."""
        alive = set(everyone)
        self._proof, self._kills, self.on_trial = 0, 0, None
        while self._suspects:
            suspect = self._suspects.popleft()
            if suspect in alive:
                self.on_trial = suspect
                return Verdict(submit=[suspect])
        return Verdict(submit=list(everyone))
