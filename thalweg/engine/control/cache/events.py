"""Changes of the prefix cache, recorded for routers (`kv_events_config`)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from thalweg.engine.control.cache.prefix import Node
from thalweg.engine.control.cache.tables import KVCache
from thalweg.engine.control.request import SaltParts, read_salt
from thalweg.engine.messages import BlocksCleared, BlocksRemoved, BlocksStored, KvEvent
from thalweg.hal.kv import KVSpec


@dataclass(slots=True)
class _BlockRun:
    """Consecutive blocks of one chain."""

    group: int
    parent: Node | None
    first: SaltParts
    last: Node
    ids: list[int] = field(default_factory=list)
    tokens: list[bytes] = field(default_factory=list)
    media: list[list[tuple[bytes, int]]] = field(default_factory=list)


class BlockEvents:
    """Observes a prefix cache. `take` returns the changes since the last call, in order."""

    def __init__(self, kv: KVCache) -> None:
        self._specs: list[KVSpec] = [g.spec for g in kv.groups]
        self._nodes = [max(1, spec.block_tokens // kv.unit) for spec in self._specs]
        """Nodes of a block, per group."""
        self._done: list[KvEvent] = [BlocksCleared()]
        """The first event: a router forgets what it knew of an earlier process."""
        self._run: _BlockRun | None = None
        kv.prefix.observers += (self,)

    @property
    def waiting(self) -> bool:
        return bool(self._done) or self._run is not None

    def on_publish(self, group: int, block: int, node: Node) -> None:
        nodes, parent = [node], node.parent
        while len(nodes) < self._nodes[group] and parent is not None:
            nodes.append(parent)
            parent = parent.parent
        nodes.reverse()
        run = self._run
        if run is None or run.group != group or run.last is not parent:
            self._close()
            run = self._run = _BlockRun(group, parent, read_salt(nodes[0].salt), node)
        run.last = node
        run.ids.append(event_id(node.key))
        run.tokens += [n.tokens for n in nodes]
        run.media.append([item for n in nodes for item in read_salt(n.salt).media] if node.salt else [])

    def on_evict(self, group: int, block: int, node: Node) -> None:
        self._close()
        last = self._done[-1] if self._done else None
        if isinstance(last, BlocksRemoved) and last.group == group:
            last.ids.append(event_id(node.key))
        else:
            self._done.append(BlocksRemoved(group, [event_id(node.key)]))

    def on_clear(self) -> None:
        self._close()
        self._done.append(BlocksCleared())

    def take(self) -> list[KvEvent]:
        self._close()
        taken, self._done = self._done, []
        return taken

    def _close(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        spec = self._specs[run.group]
        self._done.append(
            BlocksStored(
                group=run.group, kind=spec.kind, window=spec.window, block_tokens=spec.block_tokens, ids=run.ids,
                parent=None if run.parent is None else event_id(run.parent.key),
                tokens=np.frombuffer(b"".join(run.tokens), np.int32), adapter=run.first.adapter,
                cache_salt=run.first.cache_salt, media=run.media,
            )
        )  # fmt: skip


def event_id(key: bytes) -> int:
    """The public name of a block: a one-way function of its secret key, below 2**63."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8, person=b"kv event").digest(), "big") >> 1
