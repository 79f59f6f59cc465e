"""Changes of the prefix cache, published in the format of vLLM, for routers.

A payload is MessagePack of `[seconds since the epoch, [event, ...], rank]`. Events are maps with vLLM's field names. The
publishers belong to the client, so numbers go on when an engine is replaced, and past batches are still there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from thalweg.engine import messages as m
from thalweg.engine.ipc.publisher import BatchPublisher
from thalweg.errors import ConfigError
from thalweg.options.kv_events import KvEventsConfig

KINDS = {
    "full": "full_attention",
    "window": "sliding_window",
    "chunked": "chunked_local_attention",
    "latent": "mla_attention",
    "state": "mamba",
    "cross": "cross_attention",
    "encoder": "encoder_only_attention",
}
"""Kinds of KV groups, by vLLM's names."""


def to_wire(event: m.KvEvent, adapter_name: Callable[[bytes], str]) -> dict[str, Any]:
    """An event as a map of vLLM's. adapter_name: from a digest."""
    if isinstance(event, m.BlocksCleared):
        return {"type": "AllBlocksCleared"}
    if isinstance(event, m.BlocksRemoved):
        return {"type": "BlockRemoved", "block_hashes": event.ids, "medium": "GPU", "group_idx": event.group}
    name = adapter_name(event.adapter) if event.adapter else None
    extra: list[list[Any] | None] = []
    for i, media in enumerate(event.media):
        keys: list[Any] = [name] if name is not None else []
        keys += [[digest.hex(), -before] for digest, before in media]
        if i == 0 and event.parent is None and event.cache_salt:
            keys.append(event.cache_salt)
        extra.append(keys or None)
    return {
        "type": "BlockStored",
        "block_hashes": event.ids,
        "parent_block_hash": event.parent,
        "token_ids": event.tokens.tolist(),
        "block_size": event.block_tokens,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": name,
        "extra_keys": extra if any(extra) else None,
        "group_idx": event.group,
        "kv_cache_spec_kind": KINDS[event.kind],
        "kv_cache_spec_sliding_window": {0: None}.get(event.window, event.window),
    }


class KvEvents:
    """The publishers of a client's engines, one each."""

    def __init__(self, config: KvEventsConfig, engines: int, first: int = 0) -> None:
        """first: the number of the first engine, among those of all servers behind one balancer."""
        self._config, self._first = config, first
        self._names: dict[bytes, str] = {}
        self._publishers: list[BatchPublisher] = []
        self.resize(engines)

    def resize(self, engines: int) -> None:
        """There are so many engines from now on. Subscribers learn that those which left have no blocks. ConfigError if a new
        one's address cannot be bound. Then nothing has changed."""
        before = len(self._publishers)
        try:
            for rank in range(self._first + before, self._first + engines):
                self._publishers.append(BatchPublisher(self._config, rank, partial(self._encode_empty, rank)))
        except ConfigError:
            self._close_from(before)
            raise
        for i, publisher in enumerate(self._publishers[engines:], self._first + engines):
            publisher.publish(partial(self._encode, i, time.time(), [m.BlocksCleared()]))
        self._close_from(engines)

    def name_adapter(self, digest: bytes, name: str) -> None:
        """Requests with this adapter come under this name."""
        self._names[digest] = name

    def publish(self, frame: m.Outputs) -> None:
        if frame.kv_events:
            encode = partial(self._encode, self._first + frame.engine, time.time(), frame.kv_events)
            self._publishers[frame.engine].publish(encode)

    def sources(self) -> list[dict[str, Any]]:
        """Addresses, in the form of vLLM's /kv_event_sources."""
        return [
            {"data_parallel_rank": i, "endpoint": p.endpoint, "replay_endpoint": p.replay_endpoint, "topic": p.topic}
            for i, p in enumerate(self._publishers, self._first)
        ]

    def close(self) -> None:
        self._close_from(0)

    def _close_from(self, number: int) -> None:
        for publisher in self._publishers[number:]:
            publisher.close()
        del self._publishers[number:]

    def _encode(self, rank: int, seconds: float, events: Sequence[m.KvEvent]) -> bytes:
        return msgspec.msgpack.encode([seconds, [to_wire(e, self._name_of) for e in events], rank])

    def _encode_empty(self, rank: int) -> bytes:
        return self._encode(rank, time.time(), ())

    def _name_of(self, digest: bytes) -> str:
        return self._names.get(digest, digest.hex())
