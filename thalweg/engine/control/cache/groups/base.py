"""The interface of a policy. A policy keeps the blocks of one KV group for every running sequence.

Positions are counted in tokens. A *node* of the prefix cache covers `unit` tokens, the greatest common divisor of the groups'
block sizes; a prefix of n nodes is n * unit tokens long. A group files a block under the node at which it ends.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from thalweg.engine.control.cache.pool import BlockPool
from thalweg.engine.control.cache.prefix import Node, PrefixCache
from thalweg.hal.kv import KVSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class GroupContext:
    """State that a policy shares with the other groups."""

    prefix: PrefixCache
    slots: int
    """Rows of every table, scratch included."""
    max_len: int
    unit: int
    """Tokens of a node."""
    align: int
    """Tokens: the least common multiple of all groups' block sizes. Prefixes are found only at its multiples."""
    clock: Callable[[], float] = time.monotonic


class Group(ABC):
    """One KV group: its spec, its pool, and the blocks of every slot."""

    whole = True
    """Does it keep every token, so that its pool bounds how long a sequence can be?"""

    growing: I32 | None = None
    """The table of every slot, where a row only grows while its sequence stays: `rows` slices it. None: rows are made for
    each step."""

    columns = 0
    """Columns of its block table, if constant. 0: one for each block of the longest sequence in a step, and `growing`."""

    rewinds = True
    """Can a sequence go back to a position that launched steps have passed? In any group, a step that verifies drafts
    advances it by accepted tokens only."""

    keeps_states = False
    """Does a block hold a whole sequence, so that drafts are verified in a spare one (`KVSpec.spare`)?"""

    def __init__(self, spec: KVSpec, total: int, index: int, around: GroupContext) -> None:
        """total: blocks, scratch included; index: of the group among all groups."""
        self.spec = spec
        self.index = index
        self.unit, self.align, self.max_len = around.unit, around.align, around.max_len
        self.prefix = around.prefix
        self.pool = BlockPool(total, partial(around.prefix.evict, index), around.clock)

    # ------------------------------------------------------------------ sizes, for planning

    @classmethod
    def table_columns(cls, spec: KVSpec) -> int:
        """As `columns`, of this spec."""
        return cls.columns

    @classmethod
    @abstractmethod
    def holds(cls, spec: KVSpec, tokens: int, step: int) -> int:
        """Blocks that a sequence of `tokens` tokens holds at its fullest, with at most `step` tokens in a step."""

    @classmethod
    @abstractmethod
    def num_blocks(cls, spec: KVSpec, tokens: int, seqs: int) -> int:
        """Blocks, scratch included, of a cache of `tokens` tokens that belong to at most `seqs` running sequences."""

    # ------------------------------------------------------------------ nodes

    @abstractmethod
    def ends(self, nodes: int) -> range:
        """Indices of those of the first `nodes` nodes under which a block of this group can be filed."""

    @abstractmethod
    def reads(self, nodes: int) -> range:
        """Indices of the nodes with blocks that a sequence holds when it enters after `nodes` nodes. `find` has found them."""

    # ------------------------------------------------------------------ entering

    @abstractmethod
    def find(self, nodes: Sequence[Node], most: int) -> int:
        """The largest number of nodes <= `most` after which a sequence can continue with the blocks this group still has."""

    @abstractmethod
    def need(self, nodes: Sequence[Node], tokens: int, chunk: int) -> int:
        """Blocks that must be available for a sequence of `tokens` tokens to enter after `nodes` and compute `chunk`."""

    def first_chunk(self, nodes: Sequence[Node], take: int) -> int:
        """The tokens <= `take` that the only sequence in the cache can compute after `nodes`."""
        return take

    @abstractmethod
    def enter(self, slot: int, nodes: Sequence[Node]) -> None:
        """Hold the found blocks, for a sequence that has just entered this slot."""

    # ------------------------------------------------------------------ running

    def headroom(self, running: int) -> int:
        """Blocks to leave free when a sequence enters, so that the `running` others are not preempted at once."""
        return running

    def cut(self, start: int, take: int) -> int:
        """The preferred length <= `take` of a chunk from position `start`."""
        return take

    @abstractmethod
    def lacks(self, slot: int, tokens: int) -> int:
        """Blocks that must be available for the sequence to have `tokens` tokens."""

    @abstractmethod
    def grow(self, slot: int, start: int, tokens: int, publishing: bool) -> int:
        """Allocate the blocks of the next step, from position `start` up to `tokens`. The caller has checked `lacks`.
        publishing: other requests may find the blocks of this sequence. Returns the tokens that the sequence can have before
        this must be called again."""

    @abstractmethod
    def room(self, slot: int) -> int:
        """Tokens the sequence could have with its blocks and those available."""

    @abstractmethod
    def rows(self, slots: I32, context: I32, tokens: int) -> I32:
        """The group's block table of a step: i32[S, B]. No sequence has room for more than `tokens` tokens."""

    # ------------------------------------------------------------------ after a result

    @abstractmethod
    def publish(self, slot: int, nodes: Sequence[Node], first: int, computed: int) -> None:
        """File the blocks completed by `computed` returned tokens. `nodes` are all of the sequence's, those from index
        `first` on are new."""

    @abstractmethod
    def drop(self, slot: int, computed: int) -> None:
        """Release blocks that no step after `computed` returned tokens reads."""

    @abstractmethod
    def next(self, computed: int) -> int | None:
        """The returned progress beyond `computed` at which `drop` has work. None: never."""

    @abstractmethod
    def release(self, slot: int) -> None:
        """Release everything."""

    @abstractmethod
    def blocks_of(self, slot: int) -> list[int]:
        """Every block the slot holds, as often as it holds it."""

    @abstractmethod
    def check(self, slot: int) -> None:
        """InvariantError if the slot's books do not balance."""
