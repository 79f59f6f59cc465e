"""Starting the engine process and talking to it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from typing import Any

import thalweg.errors
from thalweg.config import EngineArgs
from thalweg.engine import messages as m
from thalweg.engine.client.standby import Standby
from thalweg.engine.ipc.codec import Codec, FrameError
from thalweg.engine.ipc.socket import AsyncChannel, ChannelClosedError
from thalweg.errors import EngineDeadError, ThalwegError
from thalweg.host import processes

STOP_SECONDS = 5.0
"""Seconds an engine asked to stop may take before it is killed."""


class EngineProcess:
    """A running engine and its channel. Make one with `start`, and end it with `stop`."""

    def __init__(self, process: processes.Process, channel: AsyncChannel, ready: m.Ready) -> None:
        self._process, self._channel = process, channel
        self.ready = ready
        self.pid = process.pid
        self.heard = self.stepped = time.monotonic()
        """Times of its last sign of life, and of its last finished step or idle moment."""
        self.working = False
        self.stuck: str | None = None
        """Why it was killed from here. None: it was not."""
        self.regrouping = False
        """It replaces lost ranks: see `regroup`."""
        self._steps = 0

    @staticmethod
    async def start(args: EngineArgs, standby: Standby | None = None) -> EngineProcess:
        """A ready engine, started from `standby` if that is alive. Raises the engine's error if it could not start:
        ConfigError, CheckpointError, UnsupportedModelError, DeviceError. EngineDeadError if it died without a message."""
        if standby is None or not standby.alive:
            standby = Standby(args.device, args)
        process, ours = standby.take()
        channel = await AsyncChannel.over(ours, Codec[Any](m.FromCore))
        try:
            channel.post(m.Start(args))
            first = await channel.receive()
            if isinstance(first, m.EngineFailed):
                raise as_error(first)
        except BaseException as e:
            await channel.close()
            await _end(process)
            if isinstance(e, ChannelClosedError | FrameError):
                words = f"the engine process died while starting (exit status {process.returncode}): {e}"
                raise EngineDeadError(words) from None
            raise
        return EngineProcess(process, channel, first)

    def post(self, message: Any) -> None:
        """Send without waiting. EngineDeadError if it is gone."""
        try:
            self._channel.post(message)
        except ChannelClosedError:
            raise EngineDeadError("the engine process is gone") from None

    async def receive(self) -> m.Outputs | m.Reply | m.Ready:
        """The next frame. Heartbeats only update the times. EngineDeadError, with its last message, when it died. The reason
        why it has lost ranks, when it begins to replace them."""
        while True:
            try:
                message = await self._channel.receive()
            except (ChannelClosedError, FrameError) as e:
                await _end(self._process)
                raise EngineDeadError(self.stuck or f"the engine process ended ({self._status()}): {e}") from None
            self.heard = time.monotonic()
            if isinstance(message, m.Outputs | m.Reply):
                self.stepped = self.heard
                return message
            if isinstance(message, m.Regrouping):
                self.regrouping = True
                raise as_error(m.EngineFailed(message.kind, message.message))
            if isinstance(message, m.Ready) and self.regrouping:
                self.regrouping, self.stepped = False, self.heard
                return message
            if isinstance(message, m.EngineFailed):
                await _end(self._process)
                raise as_error(message)
            if not isinstance(message, m.Heartbeat):
                await _end(self._process, 0)
                raise EngineDeadError(f"the engine sent {type(message).__name__} while serving")
            if message.steps != self._steps or not message.working:
                self._steps, self.stepped = message.steps, self.heard
            self.working = message.working

    async def regroup(self) -> None:
        """Wait until its ranks form a group again. Then it knows no request. EngineDeadError, or its error, if it ended."""
        while not isinstance(message := await self.receive(), m.Ready):
            continue
        self.ready = message
        self.post(m.Resume())

    def kill(self, why: str) -> None:
        """Kill a process that no longer responds. `receive` then raises EngineDeadError with `why`."""
        self.stuck = why
        self._process.kill()

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def _status(self) -> str:
        code = self._process.returncode
        return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit status {code}"

    async def stop(self) -> None:
        """Ask it to end. Kill it if it does not within STOP_SECONDS. Safe to call twice."""
        with contextlib.suppress(EngineDeadError):
            self.post(m.Control(0, "shutdown"))
        await self._channel.close()
        await _end(self._process, STOP_SECONDS)


class RankHistory:
    """The ranks of an engine, and of those that it replaced. Empty where the engine has one."""

    def __init__(self) -> None:
        self.latest: dict[int, m.RankFacts] = {}
        self.restarts = Counter[int]()
        """By rank."""

    def record(self, ready: m.Ready) -> None:
        """A rank has restarted if its process is another one."""
        for each in ready.ranks:
            before = self.latest.get(each.rank)
            self.restarts[each.rank] += before is not None and before.pid != each.pid
            self.latest[each.rank] = each


def as_error(failed: m.EngineFailed) -> ThalwegError:
    """The exception for a Failed message."""
    kind = getattr(thalweg.errors, failed.kind, EngineDeadError)
    return kind(failed.message) if issubclass(kind, ThalwegError) else EngineDeadError(failed.message)


async def _end(process: processes.Process, patience: float = 1.0) -> None:
    """Wait for it to exit. Kill it when patience runs out."""
    try:
        await asyncio.wait_for(process.wait(), patience)
    except TimeoutError:
        process.kill()
        await process.wait()
