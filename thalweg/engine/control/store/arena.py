"""Blocks in one piece of memory that peers may read: pages, the least recently used blocks, and leases."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

PAGE = 4096
"""Bytes. Pages have the size of the first block, rounded up to a multiple of this."""
Pieces = list[tuple[int, int]]
"""(address, bytes) of each page of a block, in order."""


class BlockArena:
    """A bounded table of blocks. Threads may share it. A block under a lease is not overwritten before the lease ends."""

    def __init__(self, size: int, lease_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """size: bytes."""
        self.memory = np.zeros(size, np.uint8)
        """Where the pages are."""
        self._lease_seconds, self._clock = lease_seconds, clock
        self._lock = threading.Lock()
        self._page = 0
        """Bytes of a page. 0: no block was saved yet."""
        self._free: list[int] = []
        self._blocks: OrderedDict[bytes, tuple[int, list[int]]] = OrderedDict()
        """Key -> bytes and pages, the least recently used first."""
        self._leases: dict[int, tuple[float, list[bytes]]] = {}
        self._leased = Counter[bytes]()
        self._dropped: dict[bytes, list[int]] = {}
        """Keys of discarded blocks under a lease -> their pages, which are free when the lease ends."""
        self._numbers = itertools.count(1)

    def __contains__(self, key: bytes) -> bool:
        return key in self._blocks

    def save(self, key: bytes, block: bytes) -> None:
        """Keep a block, unless it is here, or too large, or leased blocks leave no room."""
        with self._lock:
            self._end_late()
            if key in self._blocks or key in self._dropped or not block or len(block) > self.memory.size:
                return
            if not self._page:
                self._page = -(-len(block) // PAGE) * PAGE
                self._free = list(range(self.memory.size // self._page))
            count = -(-len(block) // self._page)
            if not self._make_room(count):
                return
            pages = [self._free.pop() for _ in range(count)]
            self._blocks[key] = len(block), pages
            data = np.frombuffer(block, np.uint8)
            for i, (begin, end) in enumerate(self._ranges(len(block), pages)):
                self.memory[begin:end] = data[i * self._page :][: end - begin]

    def load(self, key: bytes) -> bytes | None:
        """A copy of the block."""
        with self._lock:
            if key not in self._blocks:
                return None
            self._blocks.move_to_end(key)
            return b"".join(self.memory[begin:end].tobytes() for begin, end in self._ranges(*self._blocks[key]))

    def lease(self, keys: Sequence[bytes]) -> tuple[int, list[Pieces | None]]:
        """The number of a lease of these blocks, and their places. None: the block is missing."""
        with self._lock:
            base, number = self.memory.ctypes.data, next(self._numbers)
            found = list[Pieces | None]()
            here = [key for key in keys if key in self._blocks]
            for key in keys:
                ranges = self._ranges(*self._blocks[key]) if key in self._blocks else None
                found.append(None if ranges is None else [(base + begin, end - begin) for begin, end in ranges])
            for key in reversed(here):  # a prefix loses its tail before its head
                self._blocks.move_to_end(key)
            self._leases[number] = self._clock() + self._lease_seconds, here
            self._leased.update(here)
            return number, found

    def release(self, number: int) -> None:
        """End a lease. An unknown number has ended."""
        with self._lock:
            self._end(number)

    def discard(self, keys: Sequence[bytes]) -> None:
        """Forget blocks. Nobody finds them again, and their pages are used again after their leases."""
        with self._lock:
            for key in keys:
                if key in self._blocks:
                    self._dropped[key] = self._blocks.pop(key)[1]
            self._free_dropped()

    def _end(self, number: int) -> None:
        _, keys = self._leases.pop(number, (0.0, []))
        self._leased.subtract(keys)
        self._leased = +self._leased
        self._free_dropped()

    def _end_late(self) -> None:
        """End leases whose time is over: their readers have gone."""
        now = self._clock()
        for number in [n for n, (until, _) in self._leases.items() if until <= now]:
            self._end(number)

    def _free_dropped(self) -> None:
        for key in [k for k in self._dropped if not self._leased[k]]:
            self._free += self._dropped.pop(key)

    def _make_room(self, count: int) -> bool:
        """Free at least `count` pages. False: leases leave fewer."""
        for key in [k for k in self._blocks if not self._leased[k]] if len(self._free) < count else ():
            self._free += self._blocks.pop(key)[1]
            if len(self._free) >= count:
                break
        return len(self._free) >= count

    def _ranges(self, size: int, pages: Sequence[int]) -> list[tuple[int, int]]:
        """(begin, end) in `memory` of each page of a block."""
        starts = [page * self._page for page in pages]
        return [(at, at + min(self._page, size - i * self._page)) for i, at in enumerate(starts)]
