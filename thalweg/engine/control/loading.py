"""Adapters are read in another thread: reading is slow, and running sequences must not wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from thalweg.engine.control.core import EngineCore
from thalweg.engine.messages import EngineRequest, LoadAdapter
from thalweg.errors import ThalwegError


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """The result of a LoadAdapter message."""

    message: LoadAdapter
    refused: str
    """The reason why it could not be loaded. "": it is loaded."""


class AdapterLoads:
    """Two threads: the loop's, and one that reads."""

    def __init__(self, core: EngineCore, give: Callable[[LoadedAdapter], None]) -> None:
        """give: called by the other thread with the argument of `finish`."""
        self._core, self._give = core, give
        self._pool = ThreadPoolExecutor(1, "adapters")
        self._waiting: dict[bytes, list[EngineRequest]] = {}
        """Digest of an adapter in loading -> the requests that name it."""
        self._reads = Counter[bytes]()
        """Unanswered messages, by digest."""
        self._unwanted: set[bytes] = set()
        """Digests that were unloaded while they were read."""

    def start(self, message: LoadAdapter) -> None:
        """Requests that name the adapter wait from now on."""
        self._waiting.setdefault(message.digest, [])
        self._reads[message.digest] += 1
        self._unwanted.discard(message.digest)
        self._pool.submit(self._read, message)

    def _read(self, message: LoadAdapter) -> None:
        try:
            self._core.read_adapter(message.path, message.digest)
            why = ""
        except ThalwegError as e:
            why = str(e)
        except Exception as e:
            why = f"{message.path}: {type(e).__name__}: {e}"
        self._give(LoadedAdapter(message, why))

    def hold(self, requests: Sequence[EngineRequest]) -> list[EngineRequest]:
        """Requests that need not wait. `finish` returns the others."""
        if not self._waiting:
            return list(requests)
        for r in requests:
            if r.adapter in self._waiting:
                self._waiting[r.adapter].append(r)
        return [r for r in requests if r.adapter not in self._waiting]

    def abort(self, handles: Sequence[int]) -> None:
        for held in self._waiting.values():
            held[:] = [r for r in held if r.handle not in handles]

    def finish(self, loaded: LoadedAdapter) -> list[EngineRequest]:
        """Let requests name the adapter, or end with the reason why not. Returns those that waited for it."""
        digest, adapters = loaded.message.digest, self._core.adapters
        assert adapters is not None, "refused before"
        if loaded.refused:
            adapters.refuse(digest, loaded.refused)
        else:
            adapters.load(digest)
        waited = self._waiting.pop(digest, [])
        self._reads[digest] -= 1
        if not self._reads[digest]:
            del self._reads[digest]
            if digest in self._unwanted:
                self._unwanted.discard(digest)
                self._core.unload_adapter(digest)
        return waited

    def unload(self, digest: bytes) -> str:
        """Forget an adapter, now or as soon as it is read. Returns "", or why not, as `EngineCore.unload_adapter`."""
        why = self._core.unload_adapter(digest)
        if digest not in self._reads:
            return why
        self._unwanted.add(digest)
        return ""
