"""A group of recurrent layers: one block holds a sequence's whole state after some position, not `block_tokens` tokens.

A step reads the state before its first token from one block and writes the state after its last into another or the same one:
the group's table has two columns, read and write. Steps write into a sequence's *live* block. At a multiple of `align` tokens
the live block may be frozen as a *snapshot*: the next step reads it and writes into a fresh block. A snapshot is released
when the sequence's progress has returned, and can be found again. A findable block is therefore never written, and nothing is
ever copied.

A sequence without history reads block 0, which has no meaningful contents: a model starts from zeros where `context` is 0.

Snapshots are taken only where a step ends at such a multiple, and while a block is available. A chunk that would cross one is
cut to end at the last it can reach. Of this group `block_tokens` is the least distance of snapshots, so it is much larger
than that of groups which keep tokens.

Where steps verify drafts (`KVSpec.spare`) every sequence holds a spare block too, the third column of the table. A step with
drafts writes the state after all its tokens there, and the state after the accepted ones to the live block. A sequence
therefore never goes back, and nothing else in this file depends on drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from thalweg.engine.control.cache.groups.base import Group, GroupContext
from thalweg.engine.control.cache.prefix import Node
from thalweg.engine.control.invariant import ensure
from thalweg.hal.kv import KVSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    I32 = NDArray[np.int32]


class State(Group):
    whole = False
    columns = 2
    rewinds = False
    keeps_states = True

    def __init__(self, spec: KVSpec, total: int, index: int, around: GroupContext) -> None:
        super().__init__(spec, total, index, around)
        self.live: I32 = np.zeros(around.slots, np.int32)
        """Per slot: the block that steps write to; 0 = none yet."""
        self.spare: I32 = np.zeros(around.slots, np.int32)
        """Per slot: held as long as the live block is, if the group has spare blocks."""
        self._source: I32 = np.zeros(around.slots, np.int32)
        self._turned: I32 = np.zeros(around.slots, np.int32)
        """The step from position `_turned` reads `_source`; later ones read the live block."""
        self.snapshots: list[list[tuple[int, int]]] = [[] for _ in range(around.slots)]
        """Per slot: (position, block) of states held until that position has returned."""

    @classmethod
    def table_columns(cls, spec: KVSpec) -> int:
        return cls.columns + spec.spare

    @classmethod
    def holds(cls, spec: KVSpec, tokens: int, step: int) -> int:
        """The live block, the spare one, and a snapshot until its step has returned."""
        return 2 + spec.spare

    @classmethod
    def num_blocks(cls, spec: KVSpec, tokens: int, seqs: int) -> int:
        """A live and a spare block for every sequence, and snapshots as close as they can be."""
        return 1 + seqs * (1 + spec.spare) - (-tokens // spec.block_tokens)

    # ------------------------------------------------------------------ nodes

    def ends(self, nodes: int) -> range:
        each = self.align // self.unit
        return range(each - 1, nodes, each)

    def reads(self, nodes: int) -> range:
        return range(nodes - 1, nodes) if nodes else range(0)

    # ------------------------------------------------------------------ entering

    def find(self, nodes: Sequence[Node], most: int) -> int:
        each = self.align // self.unit
        for n in range(most // each * each, 0, -each):
            if nodes[n - 1].blocks[self.index]:
                return n
        return 0

    def _idle(self, nodes: Sequence[Node]) -> int:
        return int(bool(nodes) and self.pool.is_idle(nodes[-1].blocks[self.index]))

    def need(self, nodes: Sequence[Node], tokens: int, chunk: int) -> int:
        return 1 + self.spec.spare + self._idle(nodes)

    def first_chunk(self, nodes: Sequence[Node], take: int) -> int:
        return take if self.pool.available >= self.need(nodes, 0, take) else 0

    def enter(self, slot: int, nodes: Sequence[Node]) -> None:
        block, computed = (nodes[-1].blocks[self.index] if nodes else 0), len(nodes) * self.unit
        self.live[slot], self._source[slot], self._turned[slot] = 0, block, computed
        if block:
            self.pool.share(block)
            self.snapshots[slot].append((computed, block))

    # ------------------------------------------------------------------ running

    def headroom(self, running: int) -> int:
        """Running sequences have their live blocks, and snapshots use only available blocks."""
        return 0

    def cut(self, start: int, take: int) -> int:
        end = (start + take) // self.align * self.align
        return end - start if end > start else take

    def lacks(self, slot: int, tokens: int) -> int:
        return 0 if self.live[slot] else 1 + self.spec.spare

    def grow(self, slot: int, start: int, tokens: int, publishing: bool) -> int:
        live = int(self.live[slot])
        if not live:
            self.live[slot] = self.pool.take()
            self.spare[slot] = self.pool.take() if self.spec.spare else 0
        elif publishing and start % self.align == 0 and self._turned[slot] != start and self.pool.available:
            self.snapshots[slot].append((start, live))
            self._source[slot], self._turned[slot], self.live[slot] = live, start, self.pool.take()
        return -(-tokens // self.align) * self.align if publishing else self.max_len

    def room(self, slot: int) -> int:
        return self.max_len

    def rows(self, slots: I32, context: I32, tokens: int) -> I32:
        write = self.live[slots]
        read = np.where(self._turned[slots] == context, self._source[slots], write)
        return np.stack([read, write, self.spare[slots]] if self.spec.spare else [read, write], axis=1)

    # ------------------------------------------------------------------ after a result

    def publish(self, slot: int, nodes: Sequence[Node], first: int, computed: int) -> None:
        for position, block in self.snapshots[slot]:
            at = position // self.unit - 1
            if position <= computed and at < len(nodes) and self.prefix.put(nodes[at], self.index, block):
                self.pool.tag(block)

    def drop(self, slot: int, computed: int) -> None:
        """Release a snapshot when its position has returned: the step that reads it was launched when it was taken."""
        snapshots = self.snapshots[slot]
        while snapshots and snapshots[0][0] <= computed:
            self.pool.release(snapshots.pop(0)[1])

    def next(self, computed: int) -> int | None:
        """A snapshot of the state at `computed` itself is taken after this, if at all."""
        return computed + 1 if computed % self.align == 0 else (computed // self.align + 1) * self.align

    def release(self, slot: int) -> None:
        for _, block in reversed(self.snapshots[slot]):
            self.pool.release(block)
        self.snapshots[slot].clear()
        if self.live[slot]:
            self.pool.release(int(self.live[slot]))
        if self.spare[slot]:
            self.pool.release(int(self.spare[slot]))
        self.live[slot] = self.spare[slot] = self._source[slot] = self._turned[slot] = 0

    def blocks_of(self, slot: int) -> list[int]:
        live = [int(block) for block in (self.live[slot], self.spare[slot]) if block]
        return live + [block for _, block in self.snapshots[slot]]

    def check(self, slot: int) -> None:
        positions = [p for p, _ in self.snapshots[slot]]
        ensure(positions == sorted(set(positions)), f"group {self.index}: snapshots of slot {slot} are not in order")
        ensure(all(p % self.align == 0 for p in positions), f"group {self.index}: a snapshot of slot {slot} can never be found")
        live = int(self.live[slot])
        ensure(not live or self.pool.references[live] == 1, f"group {self.index}: slot {slot} writes to a block others hold")
        spare = int(self.spare[slot])
        ensure(bool(spare) == (self.spec.spare and bool(live)), f"group {self.index}: slot {slot} lacks its spare block")
        ensure(not spare or self.pool.references[spare] == 1, f"group {self.index}: the spare block of slot {slot} is shared")
        ensure(not live or not self.pool.findable(live), f"group {self.index}: slot {slot} writes to a block that can be found")
