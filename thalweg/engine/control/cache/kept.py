"""Blocks that callers asked to keep, in the order of their eviction: the block expected back last goes first.

An agent's conversation comes back when its tool has answered. How soon depends on how long it has been away: hardly ever at
once, most often after some seconds, and after a minute rarely. So the least recently used block is not the one to evict. Ages
are divided into classes, and for each the pool counts blocks that were reused in it and blocks that left it unused. An evicted
block leaves the count of its class: a censored observation of the estimator of Kaplan and Meier (1958), so evictions do not
shift it.

A block is expected back after the median of the rest of its pause, given its age (median residual life). A median ignores how
long the longest pauses are. Without counts it grows with age, which is the order of least recent use. Small differences do not
change that order: estimates have noise.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

STEPS = 2
"""Classes per doubling of the age."""
AGES = tuple(2 ** (i / STEPS) for i in range(12 * STEPS + 1))
"""Seconds at which classes end, up to 4096. The last class has no end."""
CLASSES = len(AGES) + 1
BOUNDS = (0.0, *AGES, 2 * AGES[-1])
"""Seconds at which classes begin, and a nominal end of the last."""
ESTIMATE_EVERY = 256
"""Blocks counted between two estimates."""
PRIOR = 8.0
"""Blocks that count in each class before any was seen: a share of them is reused that halves the rest once per doubling."""
CHOOSE_EVERY = 0.05
"""Seconds for which the class of the next eviction stays chosen: a prompt evicts many blocks at once."""
MARGIN = 2.0
"""The oldest blocks go first, unless others are expected back after so many times as long."""
MEMORY = 16
"""Counts are halved when they sum up to so many times the pool."""


class ReuseEstimate:
    """Seconds until a reuse, by class of age, from counts of reused and unused blocks."""

    def __init__(self, total: int) -> None:
        self._reused, self._unused = [0.0] * CLASSES, [0.0] * CLASSES
        self._most, self._counted, self._sum = float(MEMORY * total), 0, 0.0
        self.remaining = self._estimate()
        """Median of the seconds until the reuse of a block, by class."""

    def count(self, begin: int, age: int, *, reused: bool) -> None:
        """A block went from class `begin` to class `age`, and was reused or evicted there."""
        for i in range(begin, age):
            self._unused[i] += 1
        if reused:
            self._reused[age] += 1
        self._counted += 1
        self._sum += age - begin + reused
        if self._counted >= ESTIMATE_EVERY:
            self.remaining, self._counted = self._estimate(), 0

    def count_unused(self, age: int, blocks: int) -> None:
        """So many blocks left a class unused."""
        self._unused[age] += blocks
        self._sum += blocks
        self._counted += blocks

    def _estimate(self) -> list[float]:
        if self._sum > self._most:
            self._reused, self._unused = ([n / 2 for n in each] for each in (self._reused, self._unused))
            self._sum /= 2
        hazards = self.find_hazards()
        return [find_median(i, hazards) for i in range(CLASSES)]

    def find_hazards(self, prior: float = PRIOR) -> list[float]:
        """The probability, by class, that a block which has come to this age is reused before the next class."""
        share = 1 - 0.5 ** (1 / STEPS)
        counts = zip(self._reused, self._unused, strict=True)
        return [(r + prior * share) / (r + u + prior) if r + u + prior else 0.0 for r, u in counts]


def find_median(first: int, hazards: list[float]) -> float:
    """The seconds after which half of the blocks that have come to class `first` were reused. Between the ends of a class,
    reuses are spread evenly. Beyond the last class, older blocks have more."""
    left = 1.0
    for i in range(first, CLASSES):
        hits = left * hazards[i]
        if left - hits <= 0.5:
            return BOUNDS[i] - BOUNDS[first] + (BOUNDS[i + 1] - BOUNDS[i]) * (left - 0.5) / hits
        left -= hits
    return BOUNDS[-1] + BOUNDS[first]


class KeptBlocks:
    """Blocks without a holder, each until a time. All operations are O(1) or O(log n), amortised."""

    def __init__(self, total: int) -> None:
        """total: blocks of the pool."""
        self._total = total
        self._estimate = ReuseEstimate(total)
        self._ages: list[OrderedDict[int, float]] = [OrderedDict() for _ in range(CLASSES)]
        """By class: block -> time of its release, the earliest first. A block moves on when its class is looked at."""
        self._victim, self._chosen = -1, 0.0
        """The class of the next eviction, and when it was chosen. -1: none is."""
        self._places: dict[int, list[Any]] = {}
        """Block -> its class, and until when it is kept."""
        self._soonest: list[tuple[float, int]] = []
        """A heap of (until when, block). Entries that differ from `_places` count for nothing."""

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, block: int) -> bool:
        return block in self._places

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def add(self, block: int, until: float, now: float) -> None:
        """A block that was released now."""
        if not self._ages[0]:
            self._victim = -1
        self._ages[0][block] = now
        self._places[block] = [0, until]
        heapq.heappush(self._soonest, (until, block))
        if len(self._soonest) > 2 * self._total:
            self._soonest = [(until, kept) for kept, (_, until) in self._places.items()]
            heapq.heapify(self._soonest)

    def extend(self, block: int, until: float) -> None:
        """Keep it longer."""
        self._places[block][1] = until
        heapq.heappush(self._soonest, (until, block))

    def reuse(self, block: int, now: float) -> None:
        """The block has a holder again."""
        self._remove(block, now, reused=True)

    def pop_expired(self, now: float) -> int | None:
        """A block whose time is over. None: there is none."""
        heap = self._soonest
        while heap and self._places.get(heap[0][1], (0, None))[1] != heap[0][0]:
            heapq.heappop(heap)
        if not heap or heap[0][0] > now:
            return None
        block = heap[0][1]
        self._remove(block, now, reused=False)
        return block

    def pop_last(self, now: float) -> int:
        """The block expected back last. It is of the oldest class, unless another's median is `MARGIN` times as long,
        and of its class the one released first. There must be a block."""
        if self._victim < 0 or now - self._chosen >= CHOOSE_EVERY or not self._ages[self._victim]:
            self._choose(now)
        block = next(iter(self._ages[self._victim]))
        self._remove(block, now, reused=False)
        return block

    def _choose(self, now: float) -> None:
        self._advance(now)
        remaining, there = self._estimate.remaining, [i for i in range(CLASSES) if self._ages[i]]
        self._victim, self._chosen = max(there, key=remaining.__getitem__), now
        if remaining[self._victim] < MARGIN * remaining[there[-1]]:
            self._victim = there[-1]

    def clear(self) -> None:
        for blocks in self._ages:
            blocks.clear()
        self._places.clear()
        self._soonest.clear()

    def _remove(self, block: int, now: float, *, reused: bool) -> None:
        at, _ = self._places.pop(block)
        released = self._ages[at].pop(block)
        self._estimate.count(at, max(at, bisect_right(AGES, now - released)), reused=reused)

    def _advance(self, now: float) -> None:
        """Move blocks to the classes of their ages. Each class is in the order of release, and so are those that move."""
        places = self._places
        for i, end in enumerate(AGES):
            here, there, moved = self._ages[i], self._ages[i + 1], 0
            while here:
                block, released = here.popitem(last=False)
                if now - released < end:
                    here[block] = released
                    here.move_to_end(block, last=False)
                    break
                there[block] = released
                places[block][0] = i + 1
                moved += 1
            self._estimate.count_unused(i, moved)
