"""The default executor: one worker, driven by the engine's own thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.config import EngineArgs, EngineConfig
from thalweg.engine.control.encodings import Encoder
from thalweg.engine.control.executor import Executor
from thalweg.engine.worker.build import build
from thalweg.engine.worker.worker import Worker
from thalweg.hal.device import Pending
from thalweg.hal.step import StepBatch


class InlineExecutor(Executor):
    """`launch` is the runner's own, so a step costs no call more than without an executor."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.open = True
        self._launch = worker.launch

    @property
    def config(self) -> EngineConfig:
        return self.worker.config

    @property
    def plan(self) -> list[str]:
        return self.worker.plan

    @property
    def load_seconds(self) -> float:
        return self.worker.load_seconds

    @property
    def encoder(self) -> Encoder | None:
        return self.worker.encoder

    @property
    def launch(self) -> Callable[[StepBatch], Pending]:
        return self._launch

    def call(self, operation: str, /, *args: Any) -> list[Any]:
        return [self.worker.call(operation, *args)]

    def enter(self) -> None:
        self.worker.device.enter()

    def close(self) -> None:
        self.open = False
        self.worker.close()


def open_inline(args: EngineArgs) -> InlineExecutor:
    """Build the worker here. Errors as in `build`."""
    return InlineExecutor(build(args))
