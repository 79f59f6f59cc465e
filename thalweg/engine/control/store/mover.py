"""Moves of blocks out of the cache and into it, made by an executor in order with its steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from thalweg.engine.control.executor import Executor
from thalweg.errors import ConfigError
from thalweg.hal.device import Export


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
    """Moves by operations of an executor's worker (`engine.worker.moves`)."""

    def __init__(self, executor: Executor) -> None:
        """ConfigError for an executor of several ranks."""
        described = executor.call("describe_blocks")
        if len(described) != 1:
            raise ConfigError(f"kv_transfer_config: a store keeps blocks of one rank, not of {len(described)}; omit it")
        self.block_bytes, self.signature = described[0]
        self._executor, self._numbers = executor, itertools.count()

    def export(self, group: int, blocks: np.ndarray) -> Export:
        number = next(self._numbers)
        self._executor.call("export_blocks", number, group, blocks)
        return _ExecutorExport(self._executor, number)

    def import_(self, group: int, blocks: np.ndarray, rows: np.ndarray) -> None:
        self._executor.call("import_blocks", group, blocks, rows)


class _ExecutorExport:
    def __init__(self, executor: Executor, number: int) -> None:
        self._executor, self._number = executor, number

    def ready(self) -> bool:
        (ready,) = self._executor.call("export_ready", self._number)
        return bool(ready)

    def result(self) -> np.ndarray:
        (rows,) = self._executor.call("take_export", self._number)
        taken: np.ndarray = rows
        return taken
