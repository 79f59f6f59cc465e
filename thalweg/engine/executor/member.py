"""A rank other than the first, as rank 0 sees it: its process, its channel, and what it has sent."""

from __future__ import annotations

import queue
import signal
import time
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from thalweg.config import EngineArgs
from thalweg.engine.executor.messages import Joining
from thalweg.engine.ipc.socket import Channel
from thalweg.errors import EngineDeadError, RankLostError, ThalwegError
from thalweg.hal.platform import Place

M = TypeVar("M")
PATIENCE_SECONDS = 1.5
"""Seconds in which the cause of a PeerError, another rank's end, becomes known."""


class RankProcess(Protocol):
    """What rank 0 can do to the process of another rank."""

    def kill(self) -> None:
        """End it now, without waiting."""

    def end(self) -> None:
        """End it, and wait until it is gone where that can be seen."""

    def wait_for(self, seconds: float) -> int | None:
        """The exit status, -N for signal N. None: it still runs, or is on a machine that does not tell."""


class RemoteProcess:
    """A process of another program or machine. It ends, or gives up its rank, when its channel closes."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def kill(self) -> None:
        self._channel.shut()

    def end(self) -> None:
        self._channel.shut()

    def wait_for(self, seconds: float) -> int | None:
        return None


class Member:
    """One other rank."""

    def __init__(self, place: Place, words: str, process: RankProcess, channel: Channel, args: EngineArgs) -> None:
        """words: how messages name it. args: those it is built with."""
        self.place, self.words, self.process, self.channel, self.args = place, words, process, channel, args
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """Its messages while it was built, or the error that ended the group."""
        self.answers: dict[int, Future[Any]] = {}
        self.heard = time.monotonic()
        self.steps = 0
        self.lost = False
        """It has ended, or does not answer."""

    def expect(self, kind: type[M]) -> M:
        """The next message, which must be of this kind. Raises the error that ended the group."""
        message = self.inbox.get()
        if isinstance(message, BaseException):
            self.inbox.put(message)  # for the next caller
            raise message
        if not isinstance(message, kind):
            raise EngineDeadError(f"{self.words} sent {type(message).__name__}, not {kind.__name__}")
        return message

    def wait_joining(self, seconds: float) -> None:
        """Until it says Joining. Everything before that is of a group that has ended. RankLostError after so long."""
        until = time.monotonic() + seconds
        while True:
            try:
                message = self.inbox.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise RankLostError(f"{self.words} did not leave the group that lost a rank, in {seconds:g} s") from None
            if isinstance(message, Joining):
                return
            if self.lost and isinstance(message, BaseException):
                raise message

    def describe_end(self, reason: ThalwegError | None) -> ThalwegError:
        """Why its channel closed. reason: its last words about another rank, if there were any."""
        if isinstance(self.process, RemoteProcess):
            return reason or RankLostError(f"{self.words} is gone: its process, its machine or the connection ended")
        code = self.process.wait_for(PATIENCE_SECONDS)
        if code is None:
            return EngineDeadError(f"{self.words} closed its channel")
        if reason is not None and code > 0:
            return reason
        kind = RankLostError if code == -signal.SIGKILL else EngineDeadError
        return kind(f"{self.words} ended: {signal.Signals(-code).name if code < 0 else f'exit status {code}'}")


def describe_rank(place: Place) -> str:
    """How messages name the rank of a place."""
    return f"rank {place.rank} of {place.world}"
