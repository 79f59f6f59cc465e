"""Moves of blocks out of the cache and into it, made by an executor in order with its steps."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from thalweg.engine.control.executor import Executor
from thalweg.errors import ConfigError
from thalweg.hal.device import Export

MESSAGE = 64 << 20
"""Most bytes of blocks in a call of several ranks. At least one block is."""
ASK_SECONDS = 0.005
"""Between questions to several ranks whether a copy has arrived: each is a message to all of them."""


class Mover(Protocol):
    """Copies blocks out of the cache and into it, in order with the steps (`hal.device.Device.export`)."""

    block_bytes: Sequence[int]
    """Bytes of a block of each KV group."""
    signature: bytes
    """Equal where blocks of one process are valid in another: it covers the model, and the layout and computation of its
    blocks."""

    def export(self, group: int, blocks: np.ndarray, /) -> Export: ...

    def import_(self, group: int, blocks: np.ndarray, rows: np.ndarray, /) -> None: ...


class ExecutorMover:
    """Moves by operations of an executor's worker (`engine.worker.moves`). A block of several ranks is that of each in turn,
    and passes through the first rank's process. A store thus has a block of all ranks, or none."""

    def __init__(self, executor: Executor) -> None:
        """ConfigError for ranks with blocks of different sizes."""
        described = executor.call("describe_blocks")
        sizes, signatures = [list(each) for each, _ in described], [bytes(each) for _, each in described]
        if any(each != sizes[0] for each in sizes):
            raise ConfigError("kv_transfer_config: the ranks have blocks of different sizes, which are not stored; omit it")
        self._ranks = len(described)
        self.block_bytes: Sequence[int] = [self._ranks * n for n in sizes[0]]
        self.signature = signatures[0]
        if self._ranks > 1:
            self.signature = hashlib.blake2b(b"".join(signatures), digest_size=32).digest()
        self._executor, self._numbers = executor, itertools.count()

    def export(self, group: int, blocks: np.ndarray) -> Export:
        number = next(self._numbers)
        self._executor.call("export_blocks", number, group, blocks)
        return _ExecutorExport(self._executor, number, self._ranks)

    def import_(self, group: int, blocks: np.ndarray, rows: np.ndarray) -> None:
        n = len(blocks) if self._ranks == 1 else max(1, MESSAGE // max(1, self.block_bytes[group]))
        for i in range(0, len(blocks), n):
            self._executor.call("import_blocks", group, blocks[i : i + n], rows[i : i + n])


class _ExecutorExport:
    def __init__(self, executor: Executor, number: int, ranks: int) -> None:
        self._executor, self._number, self._ranks = executor, number, ranks
        self._asked = 0.0

    def ready(self) -> bool:
        if self._ranks > 1:
            now = time.monotonic()
            if now - self._asked < ASK_SECONDS:
                return False
            self._asked = now
        return all(self._executor.call("export_ready", self._number))

    def result(self) -> np.ndarray:
        parts: list[np.ndarray] = self._executor.call("take_export", self._number)
        return parts[0] if self._ranks == 1 else np.concatenate(parts, 1)
