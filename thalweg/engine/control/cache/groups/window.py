"""A group that keeps the last `window` tokens of a sequence, and drops the blocks before them while the sequence runs.

A prefix is found as far as the group still has the blocks within the next token's window; those before may be gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.engine.control.cache.groups.full import Full
from thalweg.engine.control.cache.prefix import Node
from thalweg.hal.kv import KVSpec

STEP = 4096
"""Tokens of prompts in a step. Chunks are shorter where more would not fit."""


class Window(Full):
    whole = False

    @classmethod
    def holds(cls, spec: KVSpec, tokens: int, step: int) -> int:
        """The window's blocks, and those of the step in progress."""
        return super().holds(spec, min(tokens, spec.window + step), step)

    @classmethod
    def num_blocks(cls, spec: KVSpec, tokens: int, seqs: int) -> int:
        """Of `rows`: twice those of running sequences, so that prefixes of recent ones are found, and those of a step."""
        whole = super().num_blocks(spec, tokens, seqs)
        if not spec.rows:
            return whole
        return min(whole, 1 + 2 * seqs * (spec.window // spec.block_tokens + 2) + -(-STEP // spec.block_tokens))

    def first_needed(self, computed: int) -> int:
        return max(0, computed - self.spec.window + 1) // self.spec.block_tokens

    def find(self, nodes: Sequence[Node], most: int) -> int:
        """Searches from the end: a missing block rules out every length with that block in its window."""
        end = at = most // self._nodes
        while at > self.first_needed(end * self.spec.block_tokens):
            at -= 1
            if not nodes[(at + 1) * self._nodes - 1].blocks[self.index]:
                end = at
        return end * self._nodes

    def need(self, nodes: Sequence[Node], tokens: int, chunk: int) -> int:
        """The first chunk's only: blocks are dropped as the sequence goes on."""
        return super().need(nodes, len(nodes) * self.unit + chunk, chunk)

    def first_chunk(self, nodes: Sequence[Node], take: int) -> int:
        first = self.first_needed(len(nodes) * self.unit)
        idle = sum(map(self.pool.is_idle, self._blocks_of(nodes, first, len(nodes) // self._nodes)))
        return min(take, max(0, self.pool.available - idle) * self.spec.block_tokens)

    def drop(self, slot: int, computed: int) -> None:
        held = self.blocks[slot]
        begin, end = self.kept[slot], min(self.first_needed(computed), len(held))
        for i in range(begin, end):
            self.pool.release(held[i])
            held[i] = 0
        self.table[slot, begin:end] = 0
        self.kept[slot] = max(begin, end)

    def next(self, computed: int) -> int | None:
        return (computed // self.spec.block_tokens + 1) * self.spec.block_tokens
