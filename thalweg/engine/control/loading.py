"""Adapters that are read beside the loop: reading takes a moment, and who is running must not wait for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from thalweg.engine.control.core import EngineCore
from thalweg.engine.messages import EngineRequest, LoadAdapter
from thalweg.errors import ThalwegError


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """What came of a message."""

    message: LoadAdapter
    refused: str
    """Why it could not be loaded. "": it is."""


class AdapterLoads:
    """Two threads: the loop's, and one that reads."""

    def __init__(self, core: EngineCore, give: Callable[[LoadedAdapter], None]) -> None:
        """give: called by the other thread with what `finish` gets."""
        self._core, self._give = core, give
        self._pool = ThreadPoolExecutor(1, "adapters")
        self._waiting: dict[bytes, list[EngineRequest]] = {}
        """By the digest of an adapter that is being read: the requests that name it."""

    def start(self, message: LoadAdapter) -> None:
        """Requests that name the adapter wait from now on."""
        self._waiting.setdefault(message.digest, [])
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
        """Those that need not wait. `finish` returns the others."""
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
        """The requests that waited for it."""
        return self._waiting.pop(loaded.message.digest, [])
