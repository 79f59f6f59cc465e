"""The contract between the engine's loop and the executor of its steps: a worker in this process, or workers elsewhere.

`thalweg.executors` is the open list of implementations. Knows no device and no tensor framework.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from thalweg.config import EngineConfig
from thalweg.engine.control.encodings import Encoder
from thalweg.engine.messages import RankFacts
from thalweg.hal.device import Pending
from thalweg.hal.step import StepBatch


class Executor(Protocol):
    """Runs the steps of one engine. One thread drives it at a time."""

    @property
    def config(self) -> EngineConfig:
        """The configuration every rank was built with. Cache sizes are those of the rank with the least memory."""

    @property
    def plan(self) -> list[str]:
        """The kernel plan of the first rank, a line per choice."""

    @property
    def load_seconds(self) -> float: ...

    ranks: Sequence[RankFacts] = ()
    """Every rank, where there are several."""

    @property
    def encoder(self) -> Encoder | None:
        """Computes vectors of images and audio. None: requests with such inputs are rejected."""

    @property
    def launch(self) -> Callable[[StepBatch], Pending]:
        """Starts a step on every rank and returns at once. Steps take effect in the order of these calls. The result is that
        of the first rank. A step that cannot be finished raises from `Pending.result`, and the engine ends."""

    def call(self, operation: str, /, *args: Any) -> list[Any]:
        """Run a named operation of the worker (`Worker.operations`) on every rank, after the steps launched so far. Returns
        the replies in order of ranks. An error of a rank is raised here. ValueError for an unknown operation."""

    def watch(self, lost: Callable[[Exception], object]) -> None:
        """Call `lost`, on any thread, when a rank is lost, also while no step runs. Later calls raise the same error."""
        return

    @property
    def can_regroup(self) -> bool:
        """After an error: was it the loss of some ranks, while the others live?"""
        return False

    def regroup(self) -> None:
        """Replace the lost ranks, where `can_regroup`. The others keep their weights. Nothing else remains: launched steps do
        not count, and caches hold nothing. An error is final."""
        raise RuntimeError("lost ranks cannot be replaced here")

    def enter(self) -> None:
        """The calling thread drives the executor from now on."""

    def close(self) -> None:
        """End the workers and give their devices back. The executor is not used again."""


@dataclass(slots=True)
class LaunchOnlyExecutor:
    """An executor made of a launch function, without operations: for benchmarks and tests of the loop."""

    config: EngineConfig
    launch: Callable[[StepBatch], Pending]
    encoder: Encoder | None = None
    plan: list[str] = field(default_factory=list)
    load_seconds: float = 0.0
    can_regroup: bool = False
    ranks: Sequence[RankFacts] = ()

    def call(self, operation: str, /, *args: Any) -> list[Any]:
        return []

    def watch(self, lost: Callable[[Exception], object]) -> None:
        return

    def regroup(self) -> None:
        raise RuntimeError("there are no ranks")

    def enter(self) -> None:
        return

    def close(self) -> None:
        return
