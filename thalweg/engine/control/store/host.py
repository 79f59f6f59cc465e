"""A store in the engine's host memory, up to a number of bytes: `kv_connector` "OffloadingConnector"."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Self

from thalweg.engine.control.store.base import Store
from thalweg.errors import ConfigError

LIMIT = "cpu_bytes_to_use"


class HostStore(Store):
    """Drops the least recently used block first."""

    def __init__(self, limit: int) -> None:
        """limit: bytes of all blocks together."""
        self._limit, self._held = limit, 0
        self._blocks: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, options: Mapping[str, Any]) -> Self:
        if problems := cls.check(options):
            raise ConfigError(*problems)
        return cls(int(options[LIMIT]))

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> list[str]:
        limit = options.get(LIMIT)
        problems = [f"{name!r:.60} is not supported; this store has {LIMIT}" for name in options if name != LIMIT]
        if type(limit) is not int or limit < 1:
            problems.append(f"{LIMIT}: must be a number of bytes above 0, not {limit!r:.40}")
        return problems

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        with self._lock:
            return [key in self._blocks for key in keys]

    def load(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            found = [self._blocks.get(key) for key in keys]
            for key in reversed(keys):  # a prefix loses its tail before its head
                if key in self._blocks:
                    self._blocks.move_to_end(key)
        return found

    def save(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> None:
        with self._lock:
            for key, block in zip(keys, blocks, strict=True):
                if len(block) > self._limit:
                    continue
                self._held += len(block) - len(self._blocks.pop(key, b""))
                self._blocks[key] = block
                while self._held > self._limit:
                    self._held -= len(self._blocks.popitem(last=False)[1])

    def discard(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._held -= len(self._blocks.pop(key, b""))

    def clear(self) -> None:
        with self._lock:
            self._blocks.clear()
            self._held = 0
