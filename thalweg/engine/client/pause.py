"""Generation that is paused, and engines that sleep: who is open waits, is aborted, or is finished first.

An engine that sleeps has no process. What was kept open lives on this side, and goes on in the process that `wake_up`
starts: prompt and emitted tokens are computed again, as after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from thalweg.engine.client.outputs import OutputProcessor
from thalweg.engine.client.pooled import PoolingOutputs
from thalweg.engine.client.stream import Stream
from thalweg.engine.client.supervisor import Supervisor
from thalweg.engine.messages import EngineRequest
from thalweg.errors import ConfigError

MODES = ("abort", "wait", "keep")
LOOK_SECONDS = 0.02


class Gate:
    """Where new requests wait while generation is paused."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.asleep = False

    @property
    def closed(self) -> bool:
        return not self._open.is_set()

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        """Returns when it is open."""
        await self._open.wait()


class Pausing:
    """The part of AsyncLLM that pauses and sleeps."""

    _gate: Gate
    _supervisor: Supervisor | None
    _outputs: OutputProcessor
    _pooled: PoolingOutputs
    _streams: dict[str, Stream]
    _handles: Any
    _open: Callable[[Any], Any]
    abort: Callable[[Sequence[str]], Any]
    reset_prefix_cache: Callable[[], Any]

    async def pause_generation(
        self, mode: str = "abort", wait_for_inflight_requests: bool | None = None, clear_cache: bool = True
    ) -> None:
        """New requests wait from now on. Those open are aborted, finished first ("wait"), or go on when it resumes ("keep").
        wait_for_inflight_requests: the old name of mode "wait". clear_cache: forget cached prefixes too."""
        if mode not in MODES:
            raise ConfigError(f"mode: {mode!r} is not one of {', '.join(MODES)}")
        if wait_for_inflight_requests:
            mode = "wait"
        self._gate.close()
        if mode == "abort":
            await self.abort(self._open_ids())
        elif mode == "wait":
            await self.wait_for_requests_to_drain(None)
        else:
            for request_id in self._outputs.open_ids():
                self._stop_computing(self._outputs.suspend(request_id, self._handles))
        if clear_cache and self._supervisor is not None:
            await self._supervisor.control("reset_prefix_cache")

    async def resume_generation(self) -> None:
        """What was kept goes on, and new requests are taken."""
        if self._gate.asleep:
            raise ConfigError("resume_generation: the engine sleeps; call wake_up()")
        self._gate.open()
        for request_id in self._outputs.open_ids():
            self._resumed(request_id)

    async def is_paused(self) -> bool:
        return self._gate.closed

    async def wait_for_requests_to_drain(self, drain_timeout: float | None = 300) -> None:
        """Returns when no request is open. TimeoutError after so many seconds."""
        async with asyncio.timeout(drain_timeout):
            while self._open_ids():
                await asyncio.sleep(LOOK_SECONDS)

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """End the engine process, so that nothing of the device's memory is held. Both levels read the weights from their files
        again. level 0: only pause. mode: as `pause_generation`. New requests wait until `wake_up`."""
        if level not in (0, 1, 2):
            raise ConfigError(f"level: {level!r} is not one of 0 (only pause), 1, 2")
        await self.pause_generation(mode, clear_cache=False)
        if level == 0 or self._supervisor is None:
            return
        self._gate.asleep = True
        supervisor, self._supervisor = self._supervisor, None
        await supervisor.stop()

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """A new engine process, with an empty prefix cache. What was kept goes on."""
        if tags:
            raise ConfigError("tags: weights and cache come back together; leave it out")
        if self._gate.asleep:
            await self._open(None)
            self._gate.asleep = False
        await self.resume_generation()

    async def is_sleeping(self) -> bool:
        return self._gate.asleep

    def _open_ids(self) -> list[str]:
        return [*self._outputs.open_ids(), *self._pooled.open_ids()]

    def _resumed(self, request_id: str) -> None:
        """Compute a request that was suspended, unless its reader is not ready for more, or generation is paused."""
        stream = self._streams.get(request_id)
        if not self._gate.closed and (stream is None or not stream.suspended):
            self._submit(self._outputs.resume(request_id))

    def _submit(self, requests: Sequence[EngineRequest]) -> None:
        if self._supervisor is not None:
            self._supervisor.submit(requests)

    def _stop_computing(self, handles: Sequence[int]) -> None:
        if self._supervisor is not None:
            self._supervisor.abort(handles)
