"""Grammars of requests are compiled in another thread before the requests are queued: compiling can last milliseconds or
more, and running sequences must not wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from thalweg.engine.messages import EngineRequest
from thalweg.grammar.grammars import Grammars


class GrammarQueue:
    """Two threads: the loop's, and one that compiles. In order: a request waits for those before it."""

    def __init__(self, grammars: Grammars, give: Callable[[list[EngineRequest]], None]) -> None:
        """give: called by the other thread with compiled requests, for the loop to pass to `ready`."""
        self._grammars, self._give = grammars, give
        self._pool = ThreadPoolExecutor(1, "compiling")
        self._lock = threading.Lock()
        self._waiting: set[int] = set()

    def start(self, requests: Sequence[EngineRequest]) -> list[EngineRequest]:
        """Compile the grammars of these. Returns the requests that need not wait. The others come back by `give`."""
        later = [r for r in requests if r.sampling.grammar is not None and not self._grammars.ready(r.sampling.grammar)]
        if not later:
            return list(requests)
        with self._lock:
            self._waiting.update(r.handle for r in later)
        self._pool.submit(self._compile, later)
        return [r for r in requests if r.handle not in self._waiting]

    def _compile(self, requests: list[EngineRequest]) -> None:
        try:
            for grammar in {r.sampling.grammar for r in requests}:
                if grammar is not None:
                    self._grammars.refuse(grammar)
        finally:
            self._give(requests)  # a failed grammar fails again in the loop, which reports it

    def warm(self) -> None:
        """Prepare for the first grammar. The caller must be idle."""
        self._pool.submit(self._grammars.warm)

    def abort(self, handles: Sequence[int]) -> None:
        with self._lock:
            self._waiting.difference_update(handles)

    def ready(self, requests: Sequence[EngineRequest]) -> list[EngineRequest]:
        """Requests that were not cancelled meanwhile."""
        with self._lock:
            here = [r for r in requests if r.handle in self._waiting]
            self._waiting.difference_update(r.handle for r in here)
        return here
