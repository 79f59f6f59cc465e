"""After an engine died: decides which sequences continue together, which must first run in isolation, and which fail.

A death from outside (SIGKILL, a stopped process) blames no request: they all continue. A crash while sequences run makes each
one a suspect. Suspects run in isolation, in sequence. One that gets a few tokens further is cleared and waits. One that
crashes the engine in isolation is convicted, and only it fails. Then all others continue together.

Pure bookkeeping over handles: knows no process, no clock, no request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

PROOF = 4
"""New tokens that clear an isolated suspect: more than any pipeline depth, so the step that crashed was repeated."""


KILLS = 3
"""Kills from outside that convict an isolated suspect, without a token in between. Fewer are a coincidence: an operator who
kills engines may well kill two in a row."""


@dataclass(slots=True)
class Verdict:
    """The caller's next actions. submit: in this order, prompt and emitted tokens. The rest of the open handles wait."""

    submit: list[int] = field(default_factory=list)
    convicted: list[int] = field(default_factory=list)
    hold: int | None = None
    """Stop this sequence in the engine (abort). Report its end with `handle_end`."""


class Recovery:
    """One engine's history of deaths. `on_trial` is the isolated handle, if any. Meanwhile new requests wait."""

    def __init__(self) -> None:
        self.on_trial: int | None = None
        self._proof = 0
        self._kills = 0
        self._suspects: deque[int] = deque()
        self._progress = False

    def handle_death(self, running: Sequence[int], everyone: Sequence[int], *, crashed: bool) -> Verdict:
        """The engine is gone. running: sequences it had begun. everyone: all open ones, in order of arrival. crashed: it
        ended by itself (a signal other than SIGKILL, an error), not by an outside kill."""
        progress, self._progress = self._progress, False
        if self.on_trial is not None:
            return self._died_in_trial(self.on_trial, everyone, crashed)
        if everyone and (crashed or not progress):
            begun = set(running) & set(everyone) or set(everyone)  # a sequence that had not begun may have crashed it
            self._suspects = deque(h for h in everyone if h in begun)
            return self._next(everyone)
        return Verdict(submit=list(everyone))

    def _died_in_trial(self, accused: int, everyone: Sequence[int], crashed: bool) -> Verdict:
        """A crash convicts, as do KILLS kills from outside."""
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
        """Do tokens matter now? Most of the time they do not."""
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
        """The engine no longer has a sequence: it finished, or was aborted."""
        return self._next(everyone) if handle == self.on_trial else Verdict()

    def _next(self, everyone: Sequence[int]) -> Verdict:
        """Isolate the next suspect. After the last one, all sequences run."""
        alive = set(everyone)
        self._proof, self._kills, self.on_trial = 0, 0, None
        while self._suspects:
            suspect = self._suspects.popleft()
            if suspect in alive:
                self.on_trial = suspect
                return Verdict(submit=[suspect])
        return Verdict(submit=list(everyone))
