"""Hit rates of the prefix cache on an agent trace: least recently used, with retention, and Belady's bound.

    python benchmarks/agent_cache.py [--conversations 24] [--turns 40] [--share 0.33] [--one-shot 0.5] [--seed 0]
        [--pauses pareto]

Conversations grow by some blocks a turn, and pause for a tool between turns. Prompts of other callers, which never come again,
arrive in between. The cache holds a share of the conversations at their full length. The blocks are those of the engine's
`BlockPool`. Belady's policy knows the future: it evicts the block whose next use is furthest away.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from thalweg.engine.control.cache.pool import BlockPool

TTL = 300.0
"""Seconds that a turn of an agent asks for."""
FIRST_BLOCKS, TURN_BLOCKS, OTHER_BLOCKS = 64, 12, 96
"""Blocks of 16 tokens: of a first prompt, of what a turn adds, and of another caller's prompt."""


PAUSES: dict[str, Callable[[random.Random], float]] = {
    "pareto": lambda rng: 2 + min(rng.paretovariate(1.3) * 2, 240),  # most tools are quick, some take minutes
    "exponential": lambda rng: rng.expovariate(1 / 12),
    "lognormal": lambda rng: rng.lognormvariate(2.3, 1.0),  # half of them longer than 10 seconds
    "human": lambda rng: rng.lognormvariate(3.4, 0.9),  # half of them longer than 30 seconds
    "bimodal": lambda rng: rng.uniform(1, 4) if rng.random() < 0.8 else rng.uniform(40, 90),
}
"""Seconds between two turns of a conversation, by name."""


@dataclass(frozen=True)
class Turn:
    time: float
    conversation: int
    blocks: int
    agent: bool
    next_use: float
    """Time of the conversation's next turn. inf: there is none."""


def make_trace(args: argparse.Namespace) -> list[Turn]:
    rng, turns = random.Random(args.seed), list[Turn]()
    for c in range(args.conversations):
        at, times, sizes = rng.uniform(0, 60), list[float](), list[int]()
        size = FIRST_BLOCKS
        for _ in range(args.turns):
            times.append(at)
            sizes.append(size)
            at += PAUSES[args.pauses](rng)
            size += rng.randrange(1, 2 * TURN_BLOCKS)
        turns += [Turn(t, c, n, True, nxt) for t, n, nxt in zip(times, sizes, [*times[1:], float("inf")], strict=True)]
    end, at, c = max(t.time for t in turns), 0.0, args.conversations
    while args.one_shot and (at := at + rng.expovariate(args.one_shot)) < end:
        turns.append(Turn(at, c, OTHER_BLOCKS, False, float("inf")))
        c += 1
    return sorted(turns, key=lambda turn: turn.time)


class Cache(Protocol):
    def serve(self, turn: Turn) -> int:
        """Blocks of the prompt that were there."""
        ...


class PoolCache:
    """The engine's pool. retain: agents ask to keep their blocks."""

    def __init__(self, blocks: int, retain: bool) -> None:
        self._retain, self._now = retain, 0.0
        self._pool = BlockPool(blocks + 1, self._forget, lambda: self._now)
        self._at: dict[tuple[int, int], int] = {}
        self._key: dict[int, tuple[int, int]] = {}

    def _forget(self, block: int) -> None:
        del self._at[self._key.pop(block)]

    def serve(self, turn: Turn) -> int:
        self._now, held = turn.time, list[int]()
        for i in range(turn.blocks):
            block = self._at.get((turn.conversation, i))
            if block is None:
                break
            self._pool.share(block)
            held.append(block)
        found = len(held)
        for i in range(found, turn.blocks):
            key = (turn.conversation, i)
            if key in self._at:  # its beginning was evicted before it
                self._pool.share(self._at[key])
                held.append(self._at[key])
                continue
            block = self._pool.take()
            self._at[key], self._key[block] = block, key
            self._pool.tag(block)
            held.append(block)
        for block in held:
            if self._retain and turn.agent:
                self._pool.retain(block, turn.time + TTL)
        for block in reversed(held):
            self._pool.release(block)
        return found


class BeladyCache:
    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._next: dict[tuple[int, int], float] = {}
        self._furthest: list[tuple[float, int, tuple[int, int]]] = []
        """A heap of (-next use, -index, key). Entries that differ from `_next` count for nothing."""

    def serve(self, turn: Turn) -> int:
        found = 0
        while found < turn.blocks and (turn.conversation, found) in self._next:
            found += 1
        for i in range(turn.blocks):
            key = (turn.conversation, i)
            self._next[key] = turn.next_use
            heapq.heappush(self._furthest, (-turn.next_use, -i, key))
        while len(self._next) > self._blocks:
            use, _, key = heapq.heappop(self._furthest)
            if self._next.get(key) == -use:
                del self._next[key]
        return found


def hit_rate(cache: Cache, trace: Sequence[Turn]) -> float:
    """The share of agents' prompts that was cached."""
    found = [(cache.serve(turn), turn) for turn in trace]
    return sum(n for n, turn in found if turn.agent) / sum(turn.blocks for _, turn in found if turn.agent)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=24)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--share", type=float, default=1 / 3, help="of the conversations that the cache holds at full length")
    parser.add_argument("--one-shot", type=float, default=0.5, help="other callers' prompts a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pauses", choices=tuple(PAUSES), default="pareto", help="their distribution")
    args = parser.parse_args(words)
    trace = make_trace(args)
    agents = [turn for turn in trace if turn.agent]
    whole = sum(max(t.blocks for t in agents if t.conversation == c) for c in range(args.conversations))
    blocks = int(args.share * whole)
    print(
        f"{len(agents)} turns of {args.conversations} conversations, {len(trace) - len(agents)} other prompts; {blocks} blocks"
    )
    caches: dict[str, Cache] = {
        "least recently used": PoolCache(blocks, False),
        "with retention": PoolCache(blocks, True),
        "Belady": BeladyCache(blocks),
    }
    for name, cache in caches.items():
        print(f"{name:20} {hit_rate(cache, trace):6.1%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
