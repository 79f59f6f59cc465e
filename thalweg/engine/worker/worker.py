"""The result of a build: a device with a model on it, and its operations between steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thalweg.config import EngineConfig
from thalweg.hal.device import Device, Pending
from thalweg.hal.step import StepBatch

if TYPE_CHECKING:
    from thalweg.engine.control.encodings import Encoder

CONCURRENT = frozenset({"read_adapter"})
"""Operations that any thread may call while another one runs steps."""


@dataclass(slots=True)
class Worker:
    """A device with a model on it, ready to run steps."""

    config: EngineConfig
    launch: Callable[[StepBatch], Pending]
    plan: list[str]
    """The kernel plan, a line per choice."""
    device: Device
    operations: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """By name: work between steps. Arguments and replies are plain values and numpy arrays, as they may cross processes.

    populate(reached): `Device.populate` of all caches. reached: per KV group, the first blocks that have been in use. Every
    worker has it.
    read_adapter(path, digest), keep_adapter(digest), forget_adapter(digest), write_adapter(slot, digest): see
    `adapters.AdapterStore`. Where adapters are enabled.
    describe_blocks, export_blocks, export_ready, take_export, import_blocks: see `moves.BlockMover`. With a kv_transfer_config.
    start_profile(prefix), stop_profile(), advance_profile(): see `profiling.Profiler`. With a profiler_config."""
    encoder: Encoder | None = None
    """Computes vectors of media. None: a text-only model."""
    load_seconds: float = 0.0
    rehearse: Callable[[], None] = lambda: None
    """Prepares steps as the build did, after `Device.regroup`."""

    def call(self, operation: str, /, *args: Any) -> Any:
        """Run an operation. ValueError for an unknown name."""
        found = self.operations.get(operation)
        if found is None:
            raise ValueError(f"operation: unknown operation {operation!r}; supported: {', '.join(sorted(self.operations))}")
        return found(*args)

    def close(self) -> None:
        self.device.close()
