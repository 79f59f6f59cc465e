"""Suspending a request at the engine and resuming it, while it stays open here.

`OutputProcessor` owns a request's prompt, parameters, seed and emitted tokens. A suspended request can therefore resume with
the same text, as after a crash of the engine. There are two reasons to suspend: the reader has left too much unread, or the
owner of its seat gives another client a turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from thalweg.engine.client.fleet import Engines
from thalweg.engine.client.outputs import OutputProcessor


class Holder(Protocol):
    """A request, as seen by the owner of its seat."""

    @property
    def scheduled_ts(self) -> float | None:
        """Monotonic seconds when the engine began its current stay. None: not yet."""

    @property
    def first_token(self) -> float | None:
        """Monotonic seconds of its first token since then. None: no token yet."""

    def suspend(self) -> bool:
        """Stop its computation at once. False: not possible now, and it runs on."""

    def resume(self) -> None:
        """Go on after `suspend`."""


class Seat(Protocol):
    """A request's right to be at the engine, which it shares with others. `AsyncLLM.generate` gets it with the request."""

    def attach(self, holder: Holder) -> None:
        """Let the owner suspend and resume it from now on."""

    def leave(self) -> None:
        """The request was suspended by its reader: its place is free."""

    def ask(self) -> None:
        """The reader reads again: the owner must call `resume` when there is a place."""


class SuspendableRequest:
    """One open request of a Supervisor. Implements `Holder`. Without a seat it resumes as soon as its reader does."""

    __slots__ = ("_handles", "_outputs", "_seat", "_supervisor", "request_id", "stalled", "suspended")

    def __init__(
        self, request_id: str, outputs: OutputProcessor, supervisor: Engines, handles: Iterator[int], seat: Seat | None
    ) -> None:
        """outputs: where the request is open. handles: for the resumed sequences."""
        self.request_id = request_id
        self._outputs, self._supervisor, self._handles, self._seat = outputs, supervisor, handles, seat
        self.suspended, self.stalled = False, False
        """Is it off the engine, and because of its reader?"""
        if seat is not None:
            seat.attach(self)

    @property
    def scheduled_ts(self) -> float | None:
        return self._outputs.scheduled_ts(self.request_id)

    @property
    def first_token(self) -> float | None:
        return self._outputs.first_token(self.request_id)

    def suspend(self) -> bool:
        """False while suspects of a crash run one by one, or there is no engine: that order must not change."""
        if self._supervisor.recovering:
            return False
        self.suspended = True
        self._supervisor.abort(self._outputs.suspend(self.request_id, self._handles))
        return True

    def resume(self) -> None:
        self.suspended = False
        self._supervisor.submit(self._outputs.resume(self.request_id))

    def stall(self) -> None:
        """Its reader has left too much unread."""
        if self.suspended or not self.suspend():
            return
        self.stalled = True
        if self._seat is not None:
            self._seat.leave()

    def read(self) -> None:
        """Its reader has taken everything there was."""
        if not self.stalled:
            return
        self.stalled = False
        if self._seat is None:
            self.resume()
        else:
            self._seat.ask()
