"""Which cache blocks each running sequence holds, in every KV group, and what the prefix cache may find in them.

Two kinds of group: *full* keeps every token; *window* keeps the last `window` tokens and drops the blocks before them
while the sequence runs. The same key names the same tokens in every group, so a prefix is found as far as every full
group has all its blocks and every window group has those its first new token looks back on.

An *encoder* group is kept as a full one, although its blocks hold nothing.

Why a dropped, freed or preempted block can go to somebody else at once although steps that write to it are still in
flight: executables take effect in the order of launch, and a sequence's blocks are given up only when no later launch
will name them. So a step launched before writes before, and the new holder writes every position before reading it.
And a findable block is never written: it is full, all its positions were returned, and a step in flight writes
only positions beyond those.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from thalweg.engine.control.blocks import BlockPool
from thalweg.engine.control.invariant import ensure
from thalweg.engine.control.prefix import HashFn, Node, PrefixCache
from thalweg.engine.control.request import Request
from thalweg.engine.control.slots import Slots
from thalweg.errors import ConfigError
from thalweg.hal.kv import KVSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEVER = 2**31 - 1


class Group:
    """One KV group: its pool, the block table of every slot, and the same blocks as lists (0 = dropped)."""

    def __init__(self, spec: KVSpec, total: int, slots: int, width: int, cache: PrefixCache, index: int) -> None:
        self.spec = spec
        self.pool = BlockPool(total, partial(cache.forget, index))
        self.table: NDArray[np.int32] = np.zeros((slots, width), np.int32)
        self.blocks: list[list[int]] = [[] for _ in range(slots)]
        self.kept = [0] * slots
        """Per slot: index of the first block not dropped."""

    def first_needed(self, computed: int) -> int:
        """Index of the first block that the token at position `computed`, or any after it, looks at."""
        return max(0, computed - self.spec.window + 1) // self.spec.block_tokens if self.spec.window else 0

    def add(self, slot: int, block: int) -> None:
        held = self.blocks[slot]
        self.table[slot, len(held)] = block
        held.append(block)

    def drop(self, slot: int, end: int) -> None:
        """Release the blocks before index `end`."""
        held = self.blocks[slot]
        for i in range(self.kept[slot], end):
            self.pool.release(held[i])
            held[i] = 0
        self.table[slot, self.kept[slot] : end] = 0
        self.kept[slot] = max(self.kept[slot], end)

    def release(self, slot: int) -> None:
        """Release everything, the last block first: a prefix loses its tail before its head."""
        held = self.blocks[slot]
        for i in range(len(held) - 1, self.kept[slot] - 1, -1):
            self.pool.release(held[i])
        self.table[slot, : len(held)] = 0
        self.blocks[slot] = []
        self.kept[slot] = 0


class KVCache:
    def __init__(
        self, specs: Sequence[KVSpec], blocks: Sequence[int], slots: Slots, block_tokens: int, max_len: int, caching: bool,
        hash_fn: HashFn | None = None, hash_name: str = "blake2b",
    ) -> None:  # fmt: skip
        """Raises ConfigError for a group of a kind or block size it cannot keep."""
        for g, spec in enumerate(specs):
            if spec.kind not in ("full", "window", "encoder"):
                raise ConfigError(
                    f"cache: KV group {g} is of kind {spec.kind!r}; this version keeps full, window and encoder groups only"
                )
            if spec.block_tokens != block_tokens:
                raise ConfigError(f"cache: KV group {g} has blocks of {spec.block_tokens} tokens, the others of {block_tokens}")
        if not specs or len(specs) != len(blocks):
            raise ConfigError(f"cache: {len(specs)} KV groups, but block counts for {len(blocks)}")
        self.block_tokens = block_tokens
        self.caching = caching
        self.prefix = PrefixCache(len(specs), hash_fn, hash_name)
        width = -(-max_len // block_tokens)
        self.groups = [
            Group(s, n, slots.count + 1, width, self.prefix, g) for g, (s, n) in enumerate(zip(specs, blocks, strict=True))
        ]
        self._slots = slots
        self._windows = [(i, g) for i, g in enumerate(self.groups) if g.spec.window]

    @property
    def full_sizes(self) -> list[int]:
        """Usable blocks of each group that keeps every token."""
        return [g.pool.total - 1 for g in self.groups if not g.spec.window]

    # ------------------------------------------------------------------ room

    def demand(self, nodes: Sequence[Node], tokens: int, chunk: int) -> list[int]:
        """Blocks each group must have available for a sequence of `tokens` tokens, of which `nodes` are found, to enter.
        A window group is asked for its first chunk only: it drops blocks as it goes."""
        found, out = len(nodes), []
        for i, g in enumerate(self.groups):
            first = g.first_needed(found * self.block_tokens)
            upto = found * self.block_tokens + chunk if g.spec.window else tokens
            idle = sum(g.pool.is_idle(n.blocks[i]) for n in nodes[first:])
            out.append(-(-upto // self.block_tokens) - found + idle)
        return out

    def fits(self, demand: Sequence[int], headroom: int) -> bool:
        """Is that much available, and `headroom` blocks more?"""
        return all(g.pool.available - headroom >= d for g, d in zip(self.groups, demand, strict=False))

    def room(self, slot: int) -> int:
        """Tokens the sequence could have in the cache with the blocks it holds and those available now."""
        return min((len(g.blocks[slot]) + g.pool.available) for g in self.groups) * self.block_tokens

    def grow(self, slot: int, tokens: int) -> bool:
        """Blocks for `tokens` tokens in every group, or none at all and False."""
        count = -(-tokens // self.block_tokens)
        for g in self.groups:
            if count - len(g.blocks[slot]) > g.pool.available:
                return False
        for g in self.groups:
            for _ in range(count - len(g.blocks[slot])):
                g.add(slot, g.pool.take())
        self._slots.capacity[slot] = max(int(self._slots.capacity[slot]), count * self.block_tokens)
        return True

    # ------------------------------------------------------------------ prefixes

    def keys(self, request: Request) -> list[bytes]:
        """Keys of the full blocks of a waiting request's tokens."""
        self._extend_keys(request, request.tokens, request.tokens.size // self.block_tokens)
        return request.keys

    def _extend_keys(self, request: Request, tokens: NDArray[np.int32], count: int) -> None:
        keys, bt = request.keys, self.block_tokens
        if len(keys) < count:
            parent = keys[-1] if keys else b""
            for i in range(len(keys), count):
                parent = self.prefix.key(parent, request.salt, tokens[i * bt : (i + 1) * bt].tobytes())
                keys.append(parent)

    def find(self, request: Request) -> list[Node]:
        """The longest cached prefix a waiting request could start from. At least its last token is left to compute."""
        if not self.caching or not request.read_cache:
            return []
        bt, nodes = self.block_tokens, list[Node]()
        full = [i for i, g in enumerate(self.groups) if not g.spec.window]
        most = (request.tokens.size - 1) // bt
        for i, key in enumerate(self.keys(request)[:most]):
            parent = nodes[-1] if nodes else None
            node = self.prefix.find(key, parent, request.salt, request.tokens[i * bt : (i + 1) * bt].tobytes())
            if node is None or not all(node.blocks[g] for g in full):
                break
            nodes.append(node)
        return nodes[: self._with_windows(nodes)]

    def _with_windows(self, nodes: Sequence[Node]) -> int:
        """The longest length <= len(nodes) for which every window group still has what the next token looks back on."""
        windows = self._windows
        if not windows:
            return len(nodes)
        run, best = [0] * len(self.groups), 0
        for n, node in enumerate(nodes, 1):
            good = True
            for i, g in windows:
                run[i] = run[i] + 1 if node.blocks[i] else 0
                good &= run[i] >= n - g.first_needed(n * self.block_tokens)
            if good:
                best = n
        return best

    def attach(self, slot: int, request: Request, nodes: Sequence[Node]) -> None:
        """Hold the found blocks for a request that has just entered this slot."""
        computed = len(nodes) * self.block_tokens
        for i, g in enumerate(self.groups):
            first = g.first_needed(computed)
            g.kept[slot] = first
            for n, node in enumerate(nodes):
                block = node.blocks[i] if n >= first else 0
                if block:
                    g.pool.share(block)
                g.add(slot, block)
        request.nodes = list(nodes)
        request.publishing = self.caching
        self._slots.capacity[slot] = computed
        self._slots.publish_at[slot] = self._next(request, len(nodes))

    def advance(self, slot: int, request: Request) -> list[bytes]:
        """The sequence's returned progress has passed `publish_at`: publish its new full blocks, then drop what no later
        step looks at. Returns the keys published."""
        bt = self.block_tokens
        computed = int(self._slots.returned[slot])
        count = computed // bt
        done: list[bytes] = []
        if request.publishing:
            tokens = self._slots.tokens[slot]
            self._extend_keys(request, tokens, count)
            for i in range(len(request.nodes), count):
                if not self._publish(slot, request, i, tokens[i * bt : (i + 1) * bt].tobytes()):
                    break
                done.append(request.keys[i])
        for g in self.groups:
            if g.spec.window:
                g.drop(slot, min(g.first_needed(computed), len(g.blocks[slot])))
        self._slots.publish_at[slot] = self._next(request, count)
        return done

    def _next(self, request: Request, count: int) -> int:
        """The returned progress at which `advance` has something to do again; `count` blocks are full now."""
        return (count + 1) * self.block_tokens if request.publishing or self._windows else NEVER

    def _publish(self, slot: int, request: Request, index: int, tokens: bytes) -> bool:
        parent = request.nodes[-1] if request.nodes else None
        node = self.prefix.insert(request.keys[index], parent, request.salt, tokens)
        if node is None:
            request.publishing = False
            return False
        for i, g in enumerate(self.groups):
            block = g.blocks[slot][index]
            if block and self.prefix.put(node, i, block):
                g.pool.tag(block)
        request.nodes.append(node)
        return True

    def release(self, slot: int, request: Request) -> None:
        """Give up every block. Published ones stay findable until they are needed."""
        for g in self.groups:
            g.release(slot)
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
            for slot, held in enumerate(g.blocks):
                running = self._slots.requests[slot] is not None
                ensure(running or not held, f"group {i}: slot {slot} is empty but holds blocks")
                ensure(g.table[slot, : len(held)].tolist() == held, f"group {i}: table of slot {slot} differs from its blocks")
                ensure(not g.table[slot, len(held) :].any(), f"group {i}: table of slot {slot} has blocks beyond its end")
                ensure(all(held[g.kept[slot] :]), f"group {i}: slot {slot} lacks a block it keeps")
                for block in held:
                    if block:
                        holders[block] = holders.get(block, 0) + 1
            g.pool.check(holders)
        for request in self._slots.requests:
            if request is not None:
                self._check_published(request)
        self.prefix.check()

    def _check_published(self, request: Request) -> None:
        s, slot, bt = self._slots, request.slot, self.block_tokens
        end = len(request.nodes) * bt
        ensure(end <= s.returned[slot], f"slot {slot}: a block is findable before its step has returned")
        tokens = b"".join(n.tokens for n in request.nodes)
        ensure(tokens == s.tokens[slot, :end].tobytes(), f"slot {slot}: a block is filed under other tokens than it holds")
