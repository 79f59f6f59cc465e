"""Validates grammars before they enter an engine: in a child process with limits, each grammar once.

It knows no requests: the caller adds the name of the request's field to errors.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from thalweg.errors import UnavailableError
from thalweg.grammar.source import GrammarError, GrammarRequest, GrammarSource, GrammarVocabulary
from thalweg.host.cells import CpuLimitError, CrashedError, LostError, StalledError
from thalweg.host.confined import frame_body
from thalweg.host.jobs import MEMORY as NO_MEMORY
from thalweg.host.jobs import Jobs, TaskLimits, TaskRefusedError

MOST_CHARS = 1 << 20
"""Characters of a grammar. Larger ones are rejected unread."""
SECONDS = 0.5
"""CPU seconds for one grammar. The slowest of 8,846 real schemas needs a third."""
QUICK = 0.15
"""CPU seconds of the first attempt. A grammar that needs more is validated again in a separate queue, where it delays no quick
ones."""
WALL = 30
"""Wall-clock seconds allowed per second of CPU time."""
MEMORY = 256 << 20
"""Bytes of memory for compiling one grammar."""
CHILDREN = 2
"""Child processes. At most one compiles a grammar that needs more than QUICK."""
MOST_SLOW = 8
"""Slow grammars waiting at once."""
KEPT = 256
"""Cached results, including errors."""
KEPT_CHARS = 16 << 20
"""Total characters of cached grammars."""


class GrammarValidator:
    """Validates grammars in child processes, which start on first use and end with it or this process. Thread-safe."""

    def __init__(self, vocabulary: Callable[[], GrammarVocabulary], *, seconds: float = SECONDS) -> None:
        """vocabulary: the model's, called once. seconds: CPU time for a grammar."""
        self._seconds = seconds
        self._vocabulary = vocabulary
        self._made: GrammarVocabulary | None = None
        self._making = threading.Lock()
        self._jobs: Jobs[GrammarRequest, GrammarSource] = Jobs(
            "thalweg.grammar.cell",
            CHILDREN,
            GrammarSource,
            lambda: frame_body(msgspec.msgpack.encode(self.vocabulary)),
            forks=True,
        )
        self._slow, self._slowly = threading.Semaphore(1), threading.Semaphore(MOST_SLOW)
        self._kept: OrderedDict[GrammarRequest, GrammarSource | GrammarError] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    @property
    def vocabulary(self) -> GrammarVocabulary:
        with self._making:
            if self._made is None:
                self._made = self._vocabulary()
            return self._made

    def source(self, requested: GrammarRequest) -> GrammarSource:
        """The source for the engine to compile. GrammarError gives the reason of a rejection. UnavailableError: child processes
        were lost or stalled."""
        with self._lock:
            found = self._kept.get(requested)
            if found is not None:
                self._kept.move_to_end(requested)
        if found is None:
            found = self._judge(requested)
            self._keep(requested, found)
        if isinstance(found, GrammarError):
            raise GrammarError(found.why, found.pointer)
        return found

    def _judge(self, requested: GrammarRequest) -> GrammarSource | GrammarError:
        at = "#" if requested.kind == "json" else ""
        if len(requested.text) > MOST_CHARS:
            return GrammarError(f"has {len(requested.text)} characters; the limit is {MOST_CHARS}", at)
        try:
            return self._compile(requested)
        except UnicodeEncodeError:
            return GrammarError("not valid Unicode text; remove the lone surrogate", at)
        except CpuLimitError:
            return GrammarError(f"took longer than {self._seconds:g} seconds to compile; make it simpler", at)
        except CrashedError:
            return GrammarError(f"is too deep, or needs more than {MEMORY >> 20} MiB to compile; make it simpler", at)
        except (StalledError, LostError):
            raise UnavailableError("the process that compiles grammars was lost; try again") from None
        except TaskRefusedError as e:
            why = f"used more than {MEMORY >> 20} MiB of memory" if e.why == NO_MEMORY else e.detail
            return GrammarError(why, e.place or at)

    def _compile(self, requested: GrammarRequest) -> GrammarSource:
        try:
            return self._run(requested, min(QUICK, self._seconds))
        except CpuLimitError:
            if self._seconds <= QUICK:
                raise
        if not self._slowly.acquire(blocking=False):
            raise UnavailableError("too many large grammars wait to be compiled; try again")
        try:
            with self._slow:
                return self._run(requested, self._seconds)
        finally:
            self._slowly.release()

    def _run(self, requested: GrammarRequest, seconds: float) -> GrammarSource:
        return self._jobs.run(requested, TaskLimits(seconds, WALL * self._seconds, MEMORY))

    def _keep(self, requested: GrammarRequest, found: GrammarSource | GrammarError) -> None:
        with self._lock:
            if requested not in self._kept:
                self._chars += len(requested.text)
            self._kept[requested] = found
            while len(self._kept) > 1 and (len(self._kept) > KEPT or self._chars > KEPT_CHARS):
                old, _ = self._kept.popitem(last=False)
                self._chars -= len(old.text)

    def pids(self) -> list[int]:
        """Process ids of the idle children."""
        return self._jobs.pids()

    def close(self) -> None:
        self._jobs.close()
