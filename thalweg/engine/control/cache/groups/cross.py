"""A group of cross attention: one block holds keys and values of a sequence's whole source, from the encoder's output.

The block is allocated when a sequence enters, written by its first step, read by every step, and released when it leaves. A
preempted sequence computes it again. Other sequences never find it: one that enters after a prefix encodes its source itself.
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


class Cross(Group):
    whole = False
    columns = 1

    def __init__(self, spec: KVSpec, total: int, index: int, around: GroupContext) -> None:
        super().__init__(spec, total, index, around)
        self.table: I32 = np.zeros((around.slots, 1), np.int32)

    @classmethod
    def holds(cls, spec: KVSpec, tokens: int, step: int) -> int:
        return 1

    @classmethod
    def num_blocks(cls, spec: KVSpec, tokens: int, seqs: int) -> int:
        return 1 + seqs

    # ------------------------------------------------------------------ nodes

    def ends(self, nodes: int) -> range:
        return range(0)

    def reads(self, nodes: int) -> range:
        return range(0)

    # ------------------------------------------------------------------ entering

    def find(self, nodes: Sequence[Node], most: int) -> int:
        return most

    def need(self, nodes: Sequence[Node], tokens: int, chunk: int) -> int:
        return 1

    def first_chunk(self, nodes: Sequence[Node], take: int) -> int:
        return take if self.pool.available else 0

    def enter(self, slot: int, nodes: Sequence[Node]) -> None:
        pass

    # ------------------------------------------------------------------ running

    def headroom(self, running: int) -> int:
        """Running sequences have their blocks, and need no more."""
        return 0

    def lacks(self, slot: int, tokens: int) -> int:
        return int(not self.table[slot, 0])

    def grow(self, slot: int, start: int, tokens: int, publishing: bool) -> int:
        if not self.table[slot, 0]:
            self.table[slot, 0] = self.pool.take()
        return self.max_len

    def room(self, slot: int) -> int:
        return self.max_len if self.table[slot, 0] or self.pool.available else 0

    def rows(self, slots: I32, context: I32, tokens: int) -> I32:
        rows: I32 = self.table[slots]
        return rows

    # ------------------------------------------------------------------ after a result

    def publish(self, slot: int, nodes: Sequence[Node], first: int, computed: int) -> None:
        pass

    def drop(self, slot: int, computed: int) -> None:
        pass

    def next(self, computed: int) -> int | None:
        return None

    def release(self, slot: int) -> None:
        if self.table[slot, 0]:
            self.pool.release(int(self.table[slot, 0]))
        self.table[slot, 0] = 0

    def blocks_of(self, slot: int) -> list[int]:
        return [int(self.table[slot, 0])] if self.table[slot, 0] else []

    def check(self, slot: int) -> None:
        block = int(self.table[slot, 0])
        ensure(not block or self.pool.references[block] == 1, f"group {self.index}: slot {slot} reads a block of others")
