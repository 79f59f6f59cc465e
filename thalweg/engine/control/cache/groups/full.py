"""A group that keeps every token of a sequence: one block per `block_tokens` tokens, from the first to the last."""

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


class Full(Group):
    """The block table of every slot, and the same blocks as lists (0 = dropped)."""

    def __init__(self, spec: KVSpec, total: int, index: int, around: GroupContext) -> None:
        super().__init__(spec, total, index, around)
        self.table: I32 = np.zeros((around.slots, -(-around.max_len // spec.block_tokens)), np.int32)
        self.growing = self.table
        self.blocks: list[list[int]] = [[] for _ in range(around.slots)]
        self.kept = [0] * around.slots
        """Per slot: index of the first block not dropped."""
        self._nodes = spec.block_tokens // around.unit
        """Nodes of a block."""

    @classmethod
    def holds(cls, spec: KVSpec, tokens: int, step: int) -> int:
        return -(-tokens // spec.block_tokens)

    @classmethod
    def num_blocks(cls, spec: KVSpec, tokens: int, seqs: int) -> int:
        return 1 - (-tokens // spec.block_tokens)

    def first_needed(self, computed: int) -> int:
        """Index of the first block that the token at position `computed`, or any after it, reads."""
        return 0

    def _blocks_of(self, nodes: Sequence[Node], first: int, end: int) -> list[int]:
        """The blocks filed under the nodes of blocks [first, end)."""
        n = self._nodes
        return [node.blocks[self.index] for node in nodes[(first + 1) * n - 1 : end * n : n]]

    # ------------------------------------------------------------------ nodes

    def ends(self, nodes: int) -> range:
        return range(self._nodes - 1, nodes, self._nodes)

    def reads(self, nodes: int) -> range:
        return range((self.first_needed(nodes * self.unit) + 1) * self._nodes - 1, nodes, self._nodes)

    # ------------------------------------------------------------------ entering

    def find(self, nodes: Sequence[Node], most: int) -> int:
        end = most // self._nodes
        filed = self._blocks_of(nodes, 0, end)
        return (filed.index(0) if 0 in filed else end) * self._nodes

    def need(self, nodes: Sequence[Node], tokens: int, chunk: int) -> int:
        found = len(nodes) // self._nodes
        first = self.first_needed(len(nodes) * self.unit)
        idle = sum(map(self.pool.is_idle, self._blocks_of(nodes, first, found)))
        return -(-tokens // self.spec.block_tokens) - found + idle

    def enter(self, slot: int, nodes: Sequence[Node]) -> None:
        found = len(nodes) // self._nodes
        first = self.kept[slot] = self.first_needed(len(nodes) * self.unit)
        for block in [0] * first + self._blocks_of(nodes, first, found):
            if block:
                self.pool.share(block)
            self._add(slot, block)

    # ------------------------------------------------------------------ running

    def _add(self, slot: int, block: int) -> None:
        held = self.blocks[slot]
        self.table[slot, len(held)] = block
        held.append(block)

    def lacks(self, slot: int, tokens: int) -> int:
        return -(-tokens // self.spec.block_tokens) - len(self.blocks[slot])

    def grow(self, slot: int, start: int, tokens: int, publishing: bool) -> int:
        held, each = self.blocks[slot], self.spec.block_tokens
        for index in range(len(held), -(-tokens // each)):
            block = self.table[slot, index] = self.pool.take()
            held.append(block)
        return len(held) * each

    def room(self, slot: int) -> int:
        return (len(self.blocks[slot]) + self.pool.available) * self.spec.block_tokens

    def rows(self, slots: I32, context: I32, tokens: int) -> I32:
        rows: I32 = self.table[slots, : -(-tokens // self.spec.block_tokens)]
        return rows

    # ------------------------------------------------------------------ after a result

    def publish(self, slot: int, nodes: Sequence[Node], first: int, computed: int) -> None:
        """Also the block before the first: it may have been another's block, which is gone since."""
        held, per, index = self.blocks[slot], self._nodes, self.index
        for at in range(first - first % per or per, len(nodes) + 1, per):
            node, block = nodes[at - 1], held[at // per - 1]
            if block and not node.blocks[index]:
                self.prefix.put(node, index, block)
                self.pool.tag(block)

    def drop(self, slot: int, computed: int) -> None:
        pass

    def next(self, computed: int) -> int | None:
        return None

    def release(self, slot: int) -> None:
        """The last block first: a prefix loses its tail before its head."""
        held = self.blocks[slot]
        for i in range(len(held) - 1, self.kept[slot] - 1, -1):
            self.pool.release(held[i])
        self.table[slot, : len(held)] = 0
        self.blocks[slot] = []
        self.kept[slot] = 0

    def blocks_of(self, slot: int) -> list[int]:
        return [block for block in self.blocks[slot] if block]

    def check(self, slot: int) -> None:
        held, name = self.blocks[slot], f"group {self.index}"
        ensure(self.table[slot, : len(held)].tolist() == held, f"{name}: table of slot {slot} differs from its blocks")
        ensure(not self.table[slot, len(held) :].any(), f"{name}: table of slot {slot} has blocks beyond its end")
        ensure(all(held[self.kept[slot] :]), f"{name}: slot {slot} lacks a block it keeps")
