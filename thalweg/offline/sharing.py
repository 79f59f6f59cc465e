"""One engine for several threads of a program: calls wait for their turn, and each gets its own results."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from thalweg.errors import UnavailableError

if TYPE_CHECKING:
    from thalweg.engine.client.core import Output
    from thalweg.offline.engine import LLMEngine

P = ParamSpec("P")
R = TypeVar("R")
SLEEPS = "the engine sleeps; call wake_up() first"
SHUT = "the engine was shut down; make a new LLM"


class Lockable(Protocol):
    """An object with a lock over its state."""

    @property
    def lock(self) -> contextlib.AbstractContextManager[Any]: ...


class Runnable(Protocol):
    """An object with an engine and its runs."""

    @property
    def runs(self) -> Runs: ...


L = TypeVar("L", bound=Lockable)
S = TypeVar("S", bound=Runnable)


def with_lock(method: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
    """The method under its object's lock."""

    @functools.wraps(method)
    def run(self: L, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            return method(self, *args, **kwargs)

    return run


def atomic(method: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
    """The method under its object's lock, and not cut in two by Ctrl-C."""

    @functools.wraps(method)
    def run(self: L, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock, interrupts_held():
            return method(self, *args, **kwargs)

    return run


def in_turn(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """The method while no other thread runs the engine. Calls of one thread nest."""

    @functools.wraps(method)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.runs.turn():
            return method(self, *args, **kwargs)

    return run


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """The first Ctrl-C inside raises KeyboardInterrupt at the end. A second one raises it at once.

    Only Python's own handler is put off, and only in the main thread: no other thread gets the signal."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not _OWN:
        yield
        return
    held: list[int] = []

    def hold(number: int, frame: Any) -> None:
        if held:
            _OWN(number, frame)
        held.append(number)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _OWN)
        if held:
            raise KeyboardInterrupt


_OWN = signal.default_int_handler


class Runs:
    """The thread that runs the engine of an `LLM`, and outputs it has finished for other threads."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._turn = threading.RLock()
        self._thread = threading.get_ident()
        self._mine = threading.local()
        self._open: dict[str, None] = {}
        """Enqueued by any thread and not waited for yet, in order."""
        self._kept: dict[str, Output] = {}
        """Outputs of those that finished in another thread's turn."""

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """The calling thread has the engine to itself. Others wait."""
        with self._turn:
            me = threading.get_ident()
            if me != self._thread:
                self._engine.enter()
                self._thread = me
            yield

    def remember(self, ids: Sequence[str]) -> None:
        """These wait for the calling thread's `waiting`."""
        self._mine.ids = [*(getattr(self._mine, "ids", None) or ()), *ids]
        self._open |= dict.fromkeys(ids)

    def waiting(self) -> list[str]:
        """The requests that the calling thread has enqueued, in order, or those of all threads, where this one has enqueued
        none. Each is returned once. UnavailableError if they are open and the engine sleeps."""
        mine: list[str] | None = getattr(self._mine, "ids", None)
        ids = [i for i in (self._open if mine is None else mine) if i in self._open]
        if self._engine.is_sleeping() and not set(ids).isdisjoint(self._engine.open_ids):
            raise UnavailableError(SLEEPS)
        self._mine.ids = None
        for i in ids:
            del self._open[i]
        return ids

    @contextlib.contextmanager
    def dropping(self, ids: Sequence[str]) -> Iterator[None]:
        """Where the block raises, an interruption included, the open requests of `ids` are dropped. The engine stays usable."""
        try:
            yield
        except BaseException:
            for i in ids:
                self._engine.drop(i)
            raise

    def finish(self, ids: Sequence[str], seen: Callable[[Output], None] = lambda out: None) -> dict[str, Output]:
        """Steps until all of `ids` are finished: their last outputs. Outputs of other enqueued requests are kept.
        seen: called with each output."""
        done: dict[str, Output] = {}
        wanted = set(ids)
        for i in ids:
            if i in self._kept:
                seen(done.setdefault(i, self._kept.pop(i)))
        while len(done) < len(wanted):
            for out in self._engine.step():
                if out.finished and out.request_id in wanted:
                    done[out.request_id] = out
                    seen(out)
                elif out.finished and out.request_id in self._open:
                    self._kept[out.request_id] = out
        return done
