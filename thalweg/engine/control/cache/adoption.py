"""Blocks computed elsewhere enter the cache: they get room, and are filed where `find` looks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from thalweg.engine.control.cache.prefix import Node
from thalweg.engine.control.cache.tables import KVCache
from thalweg.engine.control.request import Request


@dataclass(frozen=True, slots=True)
class AdoptedBlock:
    """A block to fill before the next step, with the contents of node `node` of the request's tokens."""

    group: int
    node: int
    block: int


def adopt(
    kv: KVCache, request: Request, count: int, here: Collection[tuple[int, int]], running: int
) -> list[AdoptedBlock] | None:
    """Make the first `count` nodes of a waiting request findable, from cached blocks and those of `here`: (group, node). The
    blocks have no holder afterwards. They are cached, and released last.

    Returns the blocks to fill. None: not enough room, given the needs of the `running` sequences. Empty: another block is
    missing by now, and nothing was changed."""
    nodes = _insert(kv, request, count)
    if not nodes:
        return []
    last = nodes[-1]
    kv.prefix.move(None, last)  # evictions prune, but not this chain
    places = sorted((i, g.index) for g in kv.groups for i in g.reads(count))
    lacking = [(i, g) for i, g in places if not nodes[i].blocks[g]]
    held = [(i, g, nodes[i].blocks[g]) for i, g in places if nodes[i].blocks[g]]
    for _, g, block in held:
        kv.groups[g].pool.share(block)
    placed: list[AdoptedBlock] | None = []
    if len(nodes) == count and all((g, i) in here for i, g in lacking):
        placed = _take(kv, nodes, lacking, running)
        held += [(p.node, p.group, p.block) for p in placed or ()]
    for _, g, block in sorted(held, reverse=True):  # a prefix loses its tail before its head
        kv.groups[g].pool.release(block)
    kv.prefix.move(last, None)
    return placed


def _insert(kv: KVCache, request: Request, count: int) -> list[Node]:
    """Nodes for the first `count` keys of a request, or for fewer if another prefix has a key of theirs."""
    unit, nodes = kv.unit, list[Node]()
    for i, key in enumerate(kv.keys(request)[:count]):
        span = request.tokens[i * unit : (i + 1) * unit].tobytes()
        salt = request.salt_of(i * unit, (i + 1) * unit)
        node = kv.prefix.insert(key, nodes[-1] if nodes else None, salt, span)
        if node is None:
            break
        nodes.append(node)
    return nodes


def _take(kv: KVCache, nodes: list[Node], lacking: list[tuple[int, int]], running: int) -> list[AdoptedBlock] | None:
    for g in kv.groups:
        need = sum(index == g.index for _, index in lacking)
        if need and need >= g.pool.available - g.headroom(running):  # one more, to go on with
            return None
    placed = []
    for i, index in lacking:
        pool = kv.groups[index].pool
        block = pool.take()
        kv.prefix.put(nodes[i], index, block)
        pool.tag(block)
        placed.append(AdoptedBlock(index, i, block))
    return placed
