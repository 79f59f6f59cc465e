"""The KV cache: every group of every running sequence kept in step, and the prefixes found in them.

The policy of a group decides which blocks it keeps (`groups`). The same key names the same tokens in every group, and a
prefix is found as far as every group can continue from there.

A dropped, freed or preempted block can be reused at once, although steps that write to it are still in flight. Executables
take effect in the order of launch, and a sequence's blocks are released only when no later launch will name them. A step
launched before therefore writes before, and the new holder writes every position before reading it. A findable block is never
written: it is full, all its positions were returned, and a step in flight writes only positions beyond those.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from thalweg.engine.control.cache.groups import Group, policy
from thalweg.engine.control.cache.groups.base import GroupContext
from thalweg.engine.control.cache.prefix import HashFn, Node, PrefixCache
from thalweg.engine.control.invariant import ensure
from thalweg.engine.control.request import Request
from thalweg.engine.control.slots import Slots
from thalweg.errors import ConfigError
from thalweg.hal.kv import KVSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEVER = 2**31 - 1


class KVCache:
    def __init__(
        self, specs: Sequence[KVSpec], blocks: Sequence[int], slots: Slots, max_len: int, caching: bool,
        hash_fn: HashFn | None = None, hash_name: str = "blake2b", clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """specs and blocks: per group. ConfigError for a group of an unsupported kind."""
        if not specs or len(specs) != len(blocks):
            raise ConfigError(f"cache: {len(specs)} KV groups, but block counts for {len(blocks)}")
        sizes = [s.block_tokens for s in specs]
        self.unit = math.gcd(*sizes)
        """Tokens of a node of the prefix cache."""
        self.caching = caching
        self.prefix = PrefixCache(len(specs), hash_fn, hash_name)
        around = GroupContext(self.prefix, slots.count + 1, max_len, self.unit, math.lcm(*sizes), clock)
        self.groups: list[Group] = [policy(s)(s, n, g, around) for g, (s, n) in enumerate(zip(specs, blocks, strict=True))]
        self._slots = slots
        self._dropping = [g for g in self.groups if g.next(0) is not None]

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """(tokens of a block, usable blocks) of each group that keeps every token."""
        return [(g.spec.block_tokens, g.pool.total - 1) for g in self.groups if g.whole]

    @property
    def rewinds(self) -> bool:
        """Can a sequence go back to a position that launched steps have passed, in every group?"""
        return all(g.rewinds for g in self.groups)

    @property
    def unready_for_drafts(self) -> list[int]:
        """Groups without the spare blocks that drafts need."""
        return [g.index for g in self.groups if g.keeps_states and not g.spec.spare]

    @property
    def keeps_states(self) -> bool:
        """Does some group keep states?"""
        return any(g.keeps_states for g in self.groups)

    @property
    def withheld(self) -> bool:
        """Does some group keep back blocks for now?"""
        return any(g.pool.withheld for g in self.groups)

    # ------------------------------------------------------------------ room

    def demand(self, nodes: Sequence[Node], tokens: int, chunk: int) -> list[int]:
        """Blocks each group must have available for a sequence of `tokens` tokens, of which `nodes` are found, to enter
        with a first chunk of `chunk` tokens."""
        return [g.need(nodes, tokens, chunk) for g in self.groups]

    def fits(self, demand: Sequence[int], running: int, spare: float = 0.0) -> bool:
        """Are the blocks of `demand` available, in addition to the `running` sequences' next ones and a share `spare` of all
        blocks?"""
        rest = [g.pool.available - g.headroom(running) - int(spare * (g.pool.total - 1)) for g in self.groups]
        return all(left >= d for left, d in zip(rest, demand, strict=False))

    def is_crowded(self, running: int) -> bool:
        """Do the `running` sequences need the available blocks?"""
        return any(g.pool.available <= g.headroom(running) for g in self.groups)

    def room(self, slot: int) -> int:
        """Tokens the sequence could have in the cache with the blocks it holds and those available now."""
        return min(g.room(slot) for g in self.groups)

    def first_chunk(self, nodes: Sequence[Node], take: int) -> int:
        """The chunk that every group has room for, where the sequence has the cache to itself."""
        return min(g.first_chunk(nodes, take) for g in self.groups)

    def cut(self, start: int, take: int) -> int:
        """The preferred length <= `take` of a chunk from position `start`, such that its end can be found again."""
        return min(g.cut(start, take) for g in self.groups) if self.caching else take

    def grow(self, slot: int, tokens: int) -> bool:
        """Blocks for `tokens` tokens in every group, or none at all and False."""
        s, capacity = self._slots, NEVER
        for g in self.groups:
            if g.lacks(slot, tokens) > g.pool.available:
                return False
        request, start = s.requests[slot], int(s.scheduled[slot])
        assert request is not None
        for g in self.groups:
            upto = g.grow(slot, start, tokens, request.publishing)
            capacity = upto if upto < capacity else capacity
        s.capacity[slot] = capacity
        return True

    def tables(self, slots: NDArray[np.int32], context: NDArray[np.int32]) -> tuple[NDArray[np.int32], ...]:
        """The block tables of a step over these slots, per group."""
        tokens = int(self._slots.capacity[slots].max())
        return tuple([g.rows(slots, context, tokens) for g in self.groups])

    # ------------------------------------------------------------------ prefixes

    def keys(self, request: Request) -> list[bytes]:
        """Keys of the nodes that a waiting request's tokens fill."""
        keys, tokens, unit = request.keys, request.tokens, self.unit
        parent = keys[-1] if keys else b""
        for i in range(len(keys), tokens.size // unit):
            salt = request.salt_of(i * unit, (i + 1) * unit)
            parent = self.prefix.key(parent, salt, tokens[i * unit : (i + 1) * unit].tobytes())
            keys.append(parent)
        return keys

    def find(self, request: Request) -> list[Node]:
        """The longest cached prefix a waiting request could start from. At least its last token is left to compute."""
        if not self.caching or not request.read_cache:
            return []
        nodes = self.chain(request)
        return nodes[: self.count_agreed(nodes)]

    def chain(self, request: Request) -> list[Node]:
        """Existing nodes of a waiting request, from the first. Not every group has a block of each."""
        unit, nodes = self.unit, list[Node]()
        most = (request.tokens.size - 1) // unit
        for i, key in enumerate(self.keys(request)[:most]):
            parent = nodes[-1] if nodes else None
            salt = request.salt_of(i * unit, (i + 1) * unit)
            node = self.prefix.find(key, parent, salt, request.tokens[i * unit : (i + 1) * unit].tobytes())
            if node is None:
                break
            nodes.append(node)
        return nodes

    def count_agreed(self, nodes: Sequence[Node]) -> int:
        """The largest number of nodes after which every group can go on."""
        count, before = len(nodes), -1
        while count != before:
            before = count
            for g in self.groups:
                count = g.find(nodes, count)
        return count

    def attach(self, slot: int, request: Request, nodes: Sequence[Node]) -> None:
        """Hold the found blocks for a request that has just entered this slot."""
        for g in self.groups:
            g.enter(slot, nodes)
        request.nodes = list(nodes)
        self.prefix.move(None, nodes[-1] if nodes else None)
        request.publishing = self.caching
        computed = len(nodes) * self.unit
        self._slots.capacity[slot] = computed
        self._slots.publish_at[slot] = self._next(request, computed)

    def advance(self, slot: int, request: Request) -> list[bytes]:
        """The sequence's returned progress has passed `publish_at`: publish complete blocks, then drop those that no later
        step reads. Returns the keys published."""
        computed = int(self._slots.returned[slot])
        done: list[bytes] = []
        if request.publishing:
            done = self._publish(slot, request, computed)
        for g in self._dropping:
            g.drop(slot, computed)
        self._slots.publish_at[slot] = self._next(request, computed)
        return done

    def _next(self, request: Request, computed: int) -> int:
        """The returned progress at which `advance` has work again."""
        then = (computed // self.unit + 1) * self.unit if request.publishing else NEVER
        return min(then, *(g.next(computed) or NEVER for g in self._dropping)) if self._dropping else then

    def _publish(self, slot: int, request: Request, computed: int) -> list[bytes]:
        """Make nodes of the returned tokens, as far as other prefixes let it, and file every group's blocks under them."""
        unit, tokens, nodes, keys, prefix = self.unit, self._slots.tokens[slot], request.nodes, request.keys, self.prefix
        first = len(nodes)
        last = before = nodes[-1] if nodes else None
        for i in range(first, computed // unit):
            span = tokens[i * unit : (i + 1) * unit].tobytes()
            salt = request.salt_of(i * unit, (i + 1) * unit)
            if i == len(keys):
                keys.append(prefix.key(keys[-1] if keys else b"", salt, span))
            node = prefix.insert(keys[i], last, salt, span)
            if node is None:
                request.publishing = False
                break
            nodes.append(node)
            last = node
        for g in self.groups:
            g.publish(slot, nodes, first, computed)
        if last is not None and last is not before:  # as `prefix.move`, but nodes with a child need no pruning
            last.ends += 1
            if before is not None:
                before.ends -= 1
        return keys[first : len(nodes)]

    def retain(self, request: Request, until: float) -> None:
        """Keep the published blocks of a running sequence until this time, while there are others to hand out."""
        for node in request.nodes:
            for g, block in zip(self.groups, node.blocks, strict=True):
                if block:
                    g.pool.retain(block, until)

    def release(self, slot: int, request: Request) -> None:
        """Release every block. Published ones stay findable until they are needed."""
        for g in self.groups:
            g.release(slot)
        self.prefix.move(request.nodes[-1] if request.nodes else None, None)
        request.nodes = []
        self._slots.capacity[slot] = 0

    def reset(self) -> None:
        """Forget every prefix. Running sequences keep their blocks and publish no more."""
        self.prefix.clear()
        for g in self.groups:
            g.pool.untag_all()
        for request in self._slots.requests:
            if request is not None:
                request.publishing = False

    def check(self) -> None:
        for i, g in enumerate(self.groups):
            holders: dict[int, int] = {}
            for slot, request in enumerate(self._slots.requests):
                held = g.blocks_of(slot)
                ensure(request is not None or not held, f"group {i}: slot {slot} is empty but holds blocks")
                g.check(slot)
                for block in held:
                    holders[block] = holders.get(block, 0) + 1
            g.pool.check(holders)
        for request in self._slots.requests:
            if request is not None:
                self._check_published(request)
        self.prefix.check()

    def _check_published(self, request: Request) -> None:
        s, slot = self._slots, request.slot
        end = len(request.nodes) * self.unit
        ensure(end <= s.returned[slot], f"slot {slot}: a block is findable before its step has returned")
        tokens = b"".join(n.tokens for n in request.nodes)
        ensure(tokens == s.tokens[slot, :end].tobytes(), f"slot {slot}: a block is filed under other tokens than it holds")
