"""The result of a build: a device with a model on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thalweg.config import EngineConfig
from thalweg.hal.device import Device, Pending
from thalweg.hal.step import StepBatch

if TYPE_CHECKING:
    from thalweg.engine.control.encodings import Encoder


@dataclass(slots=True)
class Worker:
    """A device with a model on it, ready to run steps."""

    config: EngineConfig
    launch: Callable[[StepBatch], Pending]
    plan: list[str]
    """The kernel plan, a line per choice."""
    device: Device
    load_seconds: float = 0.0
    encoder: Encoder | None = None
    """Computes vectors of media. None: the model reads text only."""
    populate: Callable[[Sequence[int]], bool] | None = None
    """`Device.populate` of all caches. Its argument counts, per KV group, the first blocks that have been in use."""

    def close(self) -> None:
        self.device.close()
