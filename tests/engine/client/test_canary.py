"""The first generation of an engine: without it the engine does not serve, and an error of it ends the start."""

from __future__ import annotations

import asyncio
import itertools
import time
from types import SimpleNamespace

import numpy as np
import pytest

from thalweg.config import EngineArgs
from thalweg.engine import messages as m
from thalweg.engine.client.supervisor import Supervisor
from thalweg.errors import EngineDeadError

FIRST = 7


class Process:
    """An engine whose sequences end, with an error or without."""

    pid, returncode, regrouping, working = 1, -9, False, False

    def __init__(self, error: str = "") -> None:
        self._error = error
        self.ready = SimpleNamespace(config=SimpleNamespace(model=SimpleNamespace(pooling=None)))
        self.heard = self.stepped = time.monotonic()
        self.stuck: str | None = None

    def post(self, message) -> None:
        """It is not read."""

    async def receive(self) -> m.Outputs:
        await asyncio.sleep(0)
        if self.stuck is not None:
            raise EngineDeadError(self.stuck)
        nothing = np.zeros(0, np.int32)
        return m.Outputs(
            nothing,
            nothing,
            0.0,
            finished=[
                m.SequenceFinished(i, "error" if self._error else "length", error=self._error) for i in (FIRST, FIRST + 1)
            ],
        )

    def kill(self, why: str) -> None:
        self.stuck = why


async def start(process: Process, on_outputs, on_dead) -> None:
    outputs = SimpleNamespace(open_handles=list, resubmit=lambda handles: [])
    supervisor = Supervisor(
        EngineArgs(), outputs, itertools.count(FIRST), on_outputs=on_outputs, on_convicted=print, on_dead=on_dead
    )

    async def get_process():
        return process

    await asyncio.wait_for(supervisor.start(get_process()), 10)


async def test_an_engine_whose_canary_fails_ends_the_start_with_its_error():
    """Weights with NaN were loading for ever."""
    passed_on: list[m.Outputs] = []
    with pytest.raises(EngineDeadError, match="could not generate: not a number"):
        await start(Process("not a number"), passed_on.append, lambda error: None)
    assert not passed_on, "requests get no error of an engine that never served"


async def test_a_fault_in_reading_a_frame_ends_the_engine_and_all_requests():
    """The task that supervises ended without a word, and every open request waited for ever."""

    def fail(frame: m.Outputs) -> None:
        raise TypeError("a frame of another kind")

    dead: list[Exception] = []
    process = Process()
    with pytest.raises(EngineDeadError, match="internal error: TypeError: a frame of another kind"):
        await start(process, fail, dead.append)
    assert dead
    assert process.stuck
