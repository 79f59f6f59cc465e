"""Processed media, kept for later requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""


Item = TypeVar("Item", bound=Sized)


class MediaCache(Generic[Item]):
    """Items by key, up to a limit of bytes, least recently used first out. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._items: OrderedDict[bytes, Item] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> Item | None:
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
            return self._items.get(key)

    def put(self, key: bytes, item: Item) -> None:
        if item.nbytes > self._most:
            return
        with self._lock:
            if key not in self._items:
                self._items[key] = item
                self._bytes += item.nbytes
            while self._bytes > self._most:
                self._bytes -= self._items.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        with self._lock:
            self._items.clear()
            self._bytes = 0
