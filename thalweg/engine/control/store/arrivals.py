"""Prefixes on their way from a store to the cache, while the requests that want them wait and others run.

A request asks once each time it waits. Another thread looks its blocks up and loads them, in one call. The blocks then enter
the cache between two steps, and the request finds them as it finds any prefix. After any failure, the prefix is computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from thalweg.engine.control.cache.adoption import AdoptedBlock, adopt
from thalweg.engine.control.cache.prefix import Node
from thalweg.engine.control.cache.tables import KVCache
from thalweg.engine.control.request import Request
from thalweg.engine.control.store.base import Store
from thalweg.engine.control.store.lanes import Lane, LaneCall
from thalweg.engine.control.store.mover import Mover
from thalweg.engine.control.store.names import StoreKeys, unseal

logger = logging.getLogger(__name__)

AT_ONCE = 8
"""Requests with a look-up or load in progress at once: bounds the host memory of loaded blocks."""


@dataclass(slots=True)
class StoreLoad:
    """The result of a look-up and load."""

    count: int = 0
    """Nodes after which a sequence can continue."""
    rows: dict[int, tuple[list[int], np.ndarray]] = field(default_factory=dict)
    """Per KV group: indices of nodes, and u8[N, bytes] of their blocks."""
    wrong: int = 0
    """Blocks that the store reported and did not return."""


@dataclass(slots=True)
class _Fetch:
    deadline: float
    job: LaneCall | None = None
    """None: it waits for one of `AT_ONCE` places."""
    again: bool = False
    """The second try: during the first, the cache evicted blocks before the loaded ones."""


class StoreLoads:
    def __init__(
        self, store: Store, mover: Mover, names: StoreKeys, lane: Lane, kv: KVCache, clock: Callable[[], float], timeout: float,
        least: int,
    ) -> None:  # fmt: skip
        """lane: the thread that calls `lookup` and `load`. timeout: seconds. least: tokens that a load must save."""
        self._store, self._mover, self._names, self._lane = store, mover, names, lane
        self._kv, self._clock, self._timeout, self._least = kv, clock, timeout, least
        self._fetches: dict[int, _Fetch] = {}
        self._late: list[LaneCall] = []
        """Calls of requests that no longer wait."""
        self.queries = self.hits = self.failed = 0
        """Tokens requested, and tokens loaded; blocks and calls that failed."""

    @property
    def waiting(self) -> bool:
        return bool(self._fetches)

    def coming(self, request: Request, found: int) -> bool:
        """Is a prefix of a waiting request longer than the `found` nodes on its way? The first call starts the load."""
        fetch = self._fetches.get(request.handle)
        if fetch is None:
            most = (request.tokens.size - 1) // self._kv.unit
            self._late = [job for job in self._late if not job.is_done]
            worth = (most - found) * self._kv.unit >= self._least
            if self._late or not worth or not self._kv.caching or not request.read_cache:
                return self._give_up(request)
            fetch = self._fetches[request.handle] = _Fetch(self._clock() + self._timeout)
            self.queries += (most - found) * self._kv.unit
        if fetch.job is None and sum(f.job is not None for f in self._fetches.values()) < AT_ONCE:
            fetch.job = self._lane.submit(partial(self._load, *self._ask(request), found))
        if fetch.job is not None and fetch.job.is_done:
            return False
        if self._clock() < fetch.deadline:
            return True
        if fetch.job is not None:
            self._late.append(fetch.job)
            self._fail(f"{self._timeout:g} s were not enough to load a prefix")
        return self._give_up(request)

    def land(self, request: Request, found: int, running: int) -> list[tuple[int, np.ndarray, np.ndarray]] | None:
        """Insert the blocks loaded for a request into the cache, which now has `found` nodes of its prompt. Returns (group,
        blocks, rows) to import before the next step. Where the cache has no room now, they are kept for the next call. None:
        the cache has evicted blocks before the loaded ones, and the request asks again, once."""
        fetch = self._fetches.get(request.handle)
        if fetch is None or fetch.job is None or not fetch.job.is_done:
            return []
        try:
            loaded: StoreLoad = fetch.job.result()
        except Exception as e:  # a store may raise anything
            self._fail(f"{type(e).__name__}: {e}")
            loaded = StoreLoad()
        if loaded.wrong:
            self._fail(f"{loaded.wrong} blocks were not what it was given, or not there", loaded.wrong)
            loaded.wrong = 0
        here = {(g, i) for g, (nodes, _) in loaded.rows.items() for i in nodes}
        placed = adopt(self._kv, request, loaded.count, here, running) if loaded.count else []
        if placed is None:
            return []
        if not placed and loaded.count > found and not fetch.again:
            self._fetches[request.handle] = _Fetch(self._clock() + self._timeout, again=True)
            return None
        self._give_up(request)
        request.stored = max(0, loaded.count - found) * self._kv.unit if placed else 0
        self.hits += request.stored
        return _imports(placed, loaded)

    def forget(self, request: Request) -> None:
        """The request no longer waits."""
        self._fetches.pop(request.handle, None)

    def reset(self) -> None:
        """Make loads in progress return nothing."""
        for fetch in self._fetches.values():
            fetch.job = self._lane.submit(StoreLoad)

    def _give_up(self, request: Request) -> bool:
        self._fetches.pop(request.handle, None)
        request.tried_store = True
        return False

    def _fail(self, why: str, count: int = 1) -> None:
        if not self.failed:
            logger.warning(
                "kv store: %s: %s; the prompt is computed (further failures are counted, not logged)",
                type(self._store).__name__, why,
            )  # fmt: skip
        self.failed += count

    # ------------------------------------------------------------------ on the store's thread

    def _ask(self, request: Request) -> tuple[list[bytes], list[Node]]:
        """Keys of the nodes that a request could start from, and copies of those nodes, with the groups that have their
        blocks."""
        keys, groups = self._kv.keys(request)[: (request.tokens.size - 1) // self._kv.unit], len(self._kv.groups)
        copies = [Node(key, None, b"", b"", groups) for key in keys]
        for copy, node in zip(copies, self._kv.chain(request), strict=False):
            copy.blocks = node.blocks.copy()
        return keys, copies

    def _load(self, keys: Sequence[bytes], nodes: list[Node], found: int) -> StoreLoad:
        """Look up blocks missing in the cache, and load those that an entering sequence would hold. nodes: copies, written
        to."""
        groups, out = self._kv.groups, StoreLoad()
        places = [(g.index, i) for g in groups for i in g.ends(len(nodes)) if not nodes[i].blocks[g.index]]
        stored = set[tuple[int, int]]()
        names = [self._names.name(keys[i], g) for g, i in places]
        for (g, i), has in zip(places, self._store.lookup(names) if names else (), strict=True):
            if has:
                stored.add((g, i))
                nodes[i].blocks[g] = -1
        blocks: dict[tuple[int, int], memoryview] = {}
        while True:
            count = self._kv.count_agreed(nodes)
            if (count - found) * self._kv.unit < self._least:
                return StoreLoad(wrong=out.wrong)
            want = [(g.index, i) for g in groups for i in g.reads(count) if (g.index, i) in stored]
            more = [place for place in want if place not in blocks]
            if not more:
                break
            names = [self._names.name(keys[i], g) for g, i in more]
            damaged = list[bytes]()
            for (g, i), name, kept in zip(more, names, self._store.load(names), strict=True):
                block = unseal(name, kept, self._mover.block_bytes[g])
                if block is None:
                    damaged += [name] if kept is not None else []
                    out.wrong += 1
                    stored.discard((g, i))
                    nodes[i].blocks[g] = 0
                else:
                    blocks[g, i] = block
            if damaged:
                self._store.discard(damaged)
        out.count = count
        for group in groups:
            indices = [i for g, i in want if g == group.index]
            rows = np.empty((len(indices), self._mover.block_bytes[group.index]), np.uint8)
            for row, i in zip(rows, indices, strict=True):
                row[:] = np.frombuffer(blocks[group.index, i], np.uint8)
            out.rows[group.index] = indices, rows
        return out


def _imports(placed: Sequence[AdoptedBlock], loaded: StoreLoad) -> list[tuple[int, np.ndarray, np.ndarray]]:
    out = []
    for g, (nodes, rows) in loaded.rows.items():
        at = {node: row for row, node in enumerate(nodes)}
        mine = [p for p in placed if p.group == g]
        if mine:
            picked = [at[p.node] for p in mine]
            whole = picked == list(range(len(nodes)))
            out.append((g, np.array([p.block for p in mine], np.int32), rows if whole else rows[picked]))
    return out
