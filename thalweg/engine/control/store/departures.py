"""Blocks on their way from the cache to a store: copied between steps, a few at a time, and saved by another thread.

A block is queued when it can be found. It leaves with one of the next steps, or with the step that overwrites it: the cache
reports evictions before that step is launched. Where more is evicted at once than may be in flight, the rest is lost, as it
would be without a store.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from thalweg.engine.control.cache.prefix import Node
from thalweg.engine.control.store.base import Store
from thalweg.engine.control.store.lanes import Lane, LaneCall
from thalweg.engine.control.store.mover import Mover
from thalweg.engine.control.store.names import StoreKeys, seal
from thalweg.hal.device import Export

logger = logging.getLogger(__name__)

PER_STEP = 16 << 20
"""Most bytes that leave with a step: a link of 16 GB/s moves them in a millisecond. At least one block does."""
STAGED = 64 << 20
"""Most bytes of copies that have not arrived on the host. They occupy memory of the device."""
SAVING = 256 << 20
"""Bytes passed to the store and not saved yet, beyond which no more leave."""


@dataclass(slots=True)
class _Copy:
    keys: list[bytes]
    export: Export
    size: int
    call: LaneCall | None = None
    """The call of `save`. None: the copy has not arrived on the host."""


@dataclass(slots=True)
class Urgent:
    """Blocks that somebody waits for."""

    queued: set[tuple[int, int]]
    """(group, block) of those that have not left."""
    copy: _Copy | None
    """The latest copy with one of them, or one before them. Copies arrive and are saved in order."""
    call: LaneCall | None
    """The latest call of `save` when they were asked for."""

    @property
    def is_done(self) -> bool:
        """Has the store been given all of them that could be saved?"""
        copied = self.copy is None or (self.copy.call is not None and self.copy.call.is_done)
        return not self.queued and copied and (self.call is None or self.call.is_done)


class StoreSaves:
    def __init__(self, store: Store, mover: Mover, names: StoreKeys, lane: Lane) -> None:
        """lane: the thread that calls `save`."""
        self._store, self._mover, self._names, self._lane = store, mover, names, lane
        self._queued: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        """(group, block) -> key of the node it is filed under."""
        self._evicted: list[tuple[tuple[int, int], bytes]] = []
        self._copies: deque[_Copy] = deque()
        self._saves: deque[tuple[LaneCall, int]] = deque()
        self._staged = self._saving = 0
        self._urgent: list[Urgent] = []
        self.per_step = PER_STEP
        self.muted = False
        """Blocks published now came from the store."""
        self.saved_bytes = self.lost_blocks = self.failed = 0

    @property
    def idle(self) -> bool:
        """Is nothing queued, or being copied?"""
        return not (self._queued or self._evicted or self._copies)

    def on_publish(self, group: int, block: int, node: Node) -> None:
        if not self.muted:
            self._queued[group, block] = node.key

    def on_evict(self, group: int, block: int, node: Node) -> None:
        if self._queued.pop((group, block), None) is not None:
            self._evicted.append(((group, block), node.key))

    def on_clear(self) -> None:
        """Queued blocks may be overwritten from now on."""
        self._queued.clear()
        self._evicted.clear()
        for urgent in self._urgent:
            urgent.queued.clear()

    def expedite(self, blocks: Iterable[tuple[int, int]]) -> Urgent:
        """Let these blocks, (group, block) each, leave before other queued ones."""
        mine = [place for place in blocks if place in self._queued]
        for place in reversed(mine):
            self._queued.move_to_end(place, last=False)
        call = self._saves[-1][0] if self._saves else None
        result = Urgent(set(mine), self._copies[-1] if self._copies else None, call)
        self._urgent.append(result)
        return result

    def flush(self) -> None:
        """Start the copies that must precede the next step, and a few more."""
        if self.idle and not self._saves:
            return
        self.collect(wait=False)
        if self._evicted:
            evicted, self._evicted = self._evicted, []
            self._export(evicted, STAGED - self._staged)
        if self._queued and self._saving < SAVING:
            left, some = min(self.per_step, STAGED - self._staged), list[tuple[tuple[int, int], bytes]]()
            while self._queued and left > 0:
                some.append(self._queued.popitem(last=False))
                left -= self._mover.block_bytes[some[-1][0][0]]
            self._export(some, STAGED)

    def _export(self, blocks: list[tuple[tuple[int, int], bytes]], budget: int) -> None:
        """Export at most `budget` bytes of these blocks. The rest is lost."""
        groups: dict[int, tuple[list[int], list[bytes]]] = {}
        for (group, block), key in blocks:
            size = self._mover.block_bytes[group]
            if size > budget:
                self.lost_blocks += 1
                continue
            budget -= size
            numbers, keys = groups.setdefault(group, ([], []))
            numbers.append(block)
            keys.append(self._names.name(key, group))
        for group, (numbers, keys) in groups.items():
            size = len(numbers) * self._mover.block_bytes[group]
            self._copies.append(_Copy(keys, self._mover.export(group, np.array(numbers, np.int32)), size))
            self._staged += size
        left = {place for place, _ in blocks}
        for urgent in self._urgent:
            if urgent.queued & left:
                urgent.queued -= left
                urgent.copy = self._copies[-1] if self._copies else None

    def collect(self, wait: bool) -> None:
        """Pass copies that have arrived on the host to the store. wait: for all copies."""
        while self._copies and (wait or self._copies[0].export.ready()):
            copy = self._copies.popleft()
            self._staged -= copy.size
            self._saving += copy.size
            copy.call = self._lane.submit(partial(_save, self._store, copy.keys, copy.export.result()))
            self._saves.append((copy.call, copy.size))
        self._urgent = [urgent for urgent in self._urgent if not urgent.is_done]
        while self._saves and self._saves[0][0].is_done:
            job, size = self._saves.popleft()
            self._saving -= size
            try:
                job.result()
                self.saved_bytes += size
            except Exception as e:  # a store may raise anything
                self.failed += 1
                if self.failed == 1:
                    name, kind = type(self._store).__name__, type(e).__name__
                    logger.warning("kv store: %s: blocks were not saved: %s: %s (more is counted, not logged)", name, kind, e)

    def settle(self, seconds: float) -> bool:
        """There is no step to run: copy a few more blocks, and wait for those. Waits for a slow store, `seconds` at most.
        Returns whether more is left."""
        if self._saving >= SAVING:
            self._lane.wait(seconds)
        self.flush()
        self.collect(wait=True)
        return not self.idle


def _save(store: Store, keys: list[bytes], rows: np.ndarray) -> None:
    store.save(keys, [seal(key, row.tobytes()) for key, row in zip(keys, rows, strict=True)])
