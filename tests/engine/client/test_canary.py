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
    """An engine whose sequences end with an error."""

    pid, returncode, regrouping, working = 1, -9, False, False

    def __init__(self) -> None:
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
            finished=[m.SequenceFinished(handle, "error", error="not a number") for handle in (FIRST, FIRST + 1)],
        )

    def kill(self, why: str) -> None:
        self.stuck = why


async def test_an_engine_whose_canary_fails_ends_the_start_with_its_error():
    """Weights with NaN were loading for ever."""
    passed_on: list[m.Outputs] = []
    outputs = SimpleNamespace(open_handles=list, resubmit=lambda handles: [])
    supervisor = Supervisor(
        EngineArgs(),
        outputs,
        itertools.count(FIRST),
        on_outputs=passed_on.append,
        on_convicted=print,
        on_dead=lambda error: None,
    )
    process = Process()

    async def start():
        return process

    with pytest.raises(EngineDeadError, match="could not generate: not a number"):
        await asyncio.wait_for(supervisor.start(start()), 10)
    assert not passed_on, "requests get no error of an engine that never served"
