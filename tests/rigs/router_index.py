"""A router's index of a prefix cache, made from KV events and compared with the cache itself."""

from __future__ import annotations

from thalweg.engine.control.cache.events import event_id
from thalweg.engine.control.core import EngineCore
from thalweg.engine.messages import BlocksCleared, BlocksRemoved, Outputs


class RouterIndex:
    def __init__(self) -> None:
        self.blocks: dict[tuple[int, int], bytes] = {}
        """(group, id) -> tokens."""
        self.seen = 0

    def follow(self, out: Outputs, core: EngineCore) -> None:
        """Apply the events of a frame: the index holds the cache's blocks, with their tokens."""
        for event in out.kv_events:
            self.seen += 1
            if isinstance(event, BlocksCleared):
                self.blocks.clear()
            elif isinstance(event, BlocksRemoved):
                for i in event.ids:
                    del self.blocks[event.group, i]
            else:
                assert event.tokens.size == len(event.ids) * event.block_tokens
                assert len(event.media) == len(event.ids)
                for i, tokens in zip(event.ids, event.tokens.reshape(len(event.ids), -1), strict=True):
                    assert (event.group, i) not in self.blocks, "a block is stored twice"
                    self.blocks[event.group, i] = tokens.tobytes()
        if core.kv.caching:
            assert self.blocks == self._held(core), "the index of events differs from the cache"

    def _held(self, core: EngineCore) -> dict[tuple[int, int], bytes]:
        held = {}
        for group, owners in zip(core.kv.groups, core.kv.prefix._owners, strict=True):
            for node in owners.values():
                at, tokens = node, b""
                while at is not None and len(tokens) < 4 * group.spec.block_tokens:
                    at, tokens = at.parent, at.tokens + tokens
                held[group.index, event_id(node.key)] = tokens
        return held
