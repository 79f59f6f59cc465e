"""The blocks of one KV group: free, held (with a count of holders), or cached for reuse.

Every block but the scratch block 0 is in exactly one of three states:

    free    no holder, and nothing findable in it
    cached  no holder, but a prefix may still be found in it; the least recently released is given out first, and one that a
            caller asked to keep (`retain`) after all others, until its time is over (`kept`)
    held    by `references` sequences; its contents may be findable too

so free + cached + held = total - 1, always. There is no evictor: a cached block is evicted when it is handed out again. All
operations are O(1), or O(log n) with retained blocks. The pool does not know the contents of a block: `tag` belongs to the
prefix cache.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from thalweg.engine.control.cache.kept import KeptBlocks
from thalweg.engine.control.invariant import InvariantError, ensure
from thalweg.hal.step import SCRATCH

MOST_KEPT = 0.75
"""At most this share of the blocks is kept for callers that asked for it. The rest is for all others' prefixes."""


class BlockPool:
    def __init__(
        self, total: int, evict: Callable[[int], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`total` counts the scratch block. `evict(block)` is called when a cached block is handed out, before the step that
        writes to it is launched."""
        if total < 2:
            raise ValueError(f"a KV group needs at least 2 blocks (one is scratch), not {total}")
        self.total = total
        self.references = [0] * total
        self.reached = SCRATCH + 1
        """Blocks below this have been handed out once."""
        self.withheld = 0
        """Blocks not given out for now: memory pressure in tests."""
        self._evict = evict
        self._free = list(range(total - 1, SCRATCH, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._findable = bytearray(total)
        self._clock = clock
        self._until: dict[int, float] = {}
        """Findable blocks to keep -> until when."""
        self._kept = KeptBlocks(total)
        """Those without a holder."""

    @property
    def available(self) -> int:
        """Blocks `take` can give now: the free and the cached."""
        return max(0, len(self._free) + len(self._cached) + len(self._kept) - self.withheld)

    @property
    def blocks_held(self) -> int:
        return self.total - 1 - len(self._free) - len(self._cached) - len(self._kept)

    def take(self) -> int:
        """A block for one holder, overwriting the oldest cached one if none is free. Ask `available` first."""
        if self._free:
            block = self._free.pop()
            if block >= self.reached:
                self.reached = block + 1
        else:
            block = self._oldest()
            self._findable[block] = False
            if self._evict is not None:
                self._evict(block)
        self.references[block] = 1
        return block

    def _oldest(self) -> int:
        """The cached block to hand out: one that was kept long enough, else the least recently released, else the kept one
        expected back last."""
        block: int | None = None
        if self._kept:
            block = self._kept.pop_expired(self._clock())
            if block is None and not self._cached:
                block = self._kept.pop_last(self._clock())
        if block is not None:
            del self._until[block]
            return block
        ensure(self._cached, "take: no block is available; the caller did not ask")
        return self._cached.popitem(last=False)[0]

    def retain(self, block: int, until: float) -> None:
        """Hand out this findable block after other cached ones, until this time of the clock."""
        if until <= self._until.get(block, 0.0):
            return
        self._until[block] = until
        if block in self._cached:
            del self._cached[block]
            self._keep(block)
        elif block in self._kept:
            self._kept.extend(block, until)

    def _keep(self, block: int) -> None:
        """The block has no holder any more."""
        if len(self._kept) >= int(MOST_KEPT * self.total):
            other = self._kept.pop_last(self._clock())
            del self._until[other]
            self._cached[other] = None
        self._kept.add(block, self._until[block], self._clock())

    def share(self, block: int) -> None:
        """One more holder of a findable block, held or cached."""
        if not self.references[block]:
            if block in self._kept:
                self._kept.reuse(block, self._clock())
            else:
                ensure(block in self._cached, f"share: block {block} is free, so nothing is in it")
                del self._cached[block]
        self.references[block] += 1

    def release(self, block: int) -> None:
        """One holder less. A block released later is kept longer."""
        left = self.references[block] - 1
        if left < 0 or block == SCRATCH:
            raise InvariantError(f"release: block {block} is not held")
        self.references[block] = left
        if not left:
            if self._findable[block] and block in self._until:
                self._keep(block)
            elif self._findable[block]:
                self._cached[block] = None
            else:
                self._free.append(block)

    def is_idle(self, block: int) -> bool:
        """Cached: sharing it makes one block fewer available."""
        return not self.references[block]

    def findable(self, block: int) -> bool:
        """Can its contents be found?"""
        return bool(self._findable[block])

    def tag(self, block: int) -> None:
        """Make the contents of this held block findable."""
        if self.references[block] <= 0:  # called in every step: the message is built only on failure
            raise InvariantError(f"tag: block {block} is not held")
        self._findable[block] = True

    def untag_all(self) -> None:
        """Make nothing findable: cached blocks become free."""
        self._findable = bytearray(self.total)
        self._free.extend(self._cached)
        self._free.extend(self._kept)
        for emptied in (self._cached, self._kept, self._until):
            emptied.clear()

    def check(self, holders: dict[int, int]) -> None:
        """`holders`: block -> number of sequences that hold it, counted by the caller from its own books."""
        ensure(not self._cached.keys() & set(self._kept), "a block is cached and kept")
        ensure(set(self._kept) <= self._until.keys(), "a block is kept for no time")
        free, cached = set(self._free), {*self._cached, *self._kept}
        ensure(len(free) == len(self._free), "a block is in the free list twice")
        ensure(not free & cached, f"blocks both free and cached: {sorted(free & cached)[:5]}")
        ensure(SCRATCH not in free | cached, "the scratch block was given back")
        held = {b for b, n in enumerate(self.references) if n}
        ensure(not held & (free | cached), f"blocks held and not held: {sorted(held & (free | cached))[:5]}")
        count = len(free) + len(cached) + len(held)
        ensure(count == self.total - 1, f"{len(free)} free + {len(cached)} cached + {len(held)} held != {self.total - 1}")
        wrong = {b for b in held | holders.keys() if self.references[b] != holders.get(b, 0)}
        ensure(not wrong, f"blocks whose reference count is not their number of holders: {sorted(wrong)[:5]}")
        ensure(all(self._findable[b] for b in cached), "a cached block cannot be found")
        ensure(not any(self._findable[b] for b in free), "a free block can be found")
