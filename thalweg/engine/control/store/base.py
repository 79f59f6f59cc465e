"""The contract of a store: it keeps KV blocks by key, for later use by this engine or by others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Self


class Store(ABC):
    """Keeps blocks by key. A cache: it may drop any block at any time.

    A key is 16 bytes. It names the tokens of a block and all before them, the model with its adapters and media, the layout
    of the block, and the engine's key secret. Equal keys mean equal bytes, and a key is written once.

    The engine calls from two threads, never from the one that runs steps. `lookup`, `load` and `discard` come from one thread,
    `save` and `clear` from the other. A call may block, and may raise: the error is logged, and the block counts as missing. A
    request waits `load_timeout` seconds for a prefix and is then computed.

    The engine checks a block's length and checksum, which finds faults of a store. It does not find forgeries: write access
    to a store is enough to change answers.
    """

    shared: ClassVar[bool] = False
    """Other engines read the blocks of this one, as does this one after a restart. They then need one key secret."""

    @classmethod
    @abstractmethod
    def open(cls, options: Mapping[str, Any]) -> Self:
        """A store for `kv_connector_extra_config`. ConfigError names the wrong option."""

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> list[str]:
        """Problems of these options, before anything is opened. Default: none."""
        return []

    def set_block_sizes(self, sizes: Sequence[int]) -> None:
        """Bytes of the blocks to be saved, by KV group. Called once, before the calls below, and returns at once. Default:
        nothing, for stores that keep blocks of any size."""
        return

    @abstractmethod
    def lookup(self, keys: Sequence[bytes]) -> Sequence[bool]:
        """Which of these blocks are here."""

    @abstractmethod
    def load(self, keys: Sequence[bytes]) -> Sequence[bytes | bytearray | memoryview | None]:
        """The blocks, as they were saved. None for a missing one."""

    @abstractmethod
    def save(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> None:
        """Keep these blocks."""

    def discard(self, keys: Sequence[bytes]) -> None:
        """These blocks failed their checksums: forget them, so that they can be saved again. Default: nothing."""
        return

    def clear(self) -> None:
        """The engine's prefix cache is being reset. Default: nothing, blocks of a shared store belong to others too."""
        return

    def close(self) -> None:
        """The engine ends. No call is in progress, and none follows."""
        return


def find_unknown(options: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """A problem for each option that a store does not have. known: those that it has, in order."""
    there = ", ".join(known)
    return [f"{name!r:.60} is not supported; this store has {there}" for name in options if name not in known]


def check_seconds(options: Mapping[str, Any], name: str) -> list[str]:
    """The problem of a time limit, if it has one. It may be absent."""
    seconds = options.get(name, 1)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 60:
        return [f"{name}: must be seconds above 0 and at most 60, not {seconds!r:.40}"]
    return []
