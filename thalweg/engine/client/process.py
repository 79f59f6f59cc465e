"""Starting the engine process and talking to it: the one module that starts processes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

import thalweg.errors
from thalweg.config import EngineArgs
from thalweg.engine import messages as m
from thalweg.engine.ipc.codec import Codec, FrameError
from thalweg.engine.ipc.socket import AsyncChannel, ChannelClosedError, Listener
from thalweg.errors import EngineDeadError, ThalwegError

STOP_SECONDS = 5.0
"""How long an engine asked to stop may take before it is killed."""


class EngineProcess:
    """A running engine and its channel. Make one with `start`; end it with `stop`."""

    def __init__(self, process: asyncio.subprocess.Process, channel: AsyncChannel, ready: m.Ready) -> None:
        self._process, self._channel = process, channel
        self.ready = ready
        self.pid = process.pid

    @staticmethod
    async def start(args: EngineArgs) -> EngineProcess:
        """An engine that is ready to serve. Raises what it said if it could not start: ConfigError, CheckpointError,
        UnsupportedModelError, DeviceError; EngineDeadError if it died without words."""
        with Listener() as listener:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "thalweg.engine.main", listener.path, stdin=asyncio.subprocess.DEVNULL
            )
            try:
                channel = await _connect(listener, process)
            except BaseException:
                await _end(process)
                raise
        try:
            channel.post(m.Start(args))
            first = await channel.receive()
        except (ChannelClosedError, FrameError) as e:
            await _end(process)
            raise EngineDeadError(f"the engine process died while starting (exit status {process.returncode}): {e}") from None
        except BaseException:
            await _end(process)
            raise
        if isinstance(first, m.Failed):
            await _end(process)
            raise as_error(first)
        return EngineProcess(process, channel, first)

    def post(self, message: Any) -> None:
        """Send without waiting. EngineDeadError if it is gone."""
        try:
            self._channel.post(message)
        except ChannelClosedError:
            raise EngineDeadError("the engine process is gone") from None

    async def receive(self) -> m.Outputs | m.Reply:
        """The next frame. EngineDeadError, with its last words, when it died."""
        try:
            message = await self._channel.receive()
        except (ChannelClosedError, FrameError) as e:
            await _end(self._process)
            raise EngineDeadError(f"the engine process ended (exit status {self._process.returncode}): {e}") from None
        if isinstance(message, m.Failed):
            raise as_error(message)
        if not isinstance(message, m.Outputs | m.Reply):
            raise EngineDeadError(f"the engine sent {type(message).__name__} while serving")
        return message

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def stop(self) -> None:
        """Ask it to end; kill it if it does not within STOP_SECONDS. Safe to call twice."""
        with contextlib.suppress(EngineDeadError):
            self.post(m.Control(0, "shutdown"))
        await self._channel.close()
        await _end(self._process, STOP_SECONDS)


def as_error(failed: m.Failed) -> ThalwegError:
    """The exception a Failed message stands for."""
    kind = getattr(thalweg.errors, failed.kind, EngineDeadError)
    return kind(failed.message) if issubclass(kind, ThalwegError) else EngineDeadError(failed.message)


async def _connect(listener: Listener, process: asyncio.subprocess.Process) -> AsyncChannel:
    """The engine's connection, or EngineDeadError if it exits before it connects."""
    accept = asyncio.ensure_future(listener.accept())
    died = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait({accept, died}, return_when=asyncio.FIRST_COMPLETED)
        if not accept.done():
            raise EngineDeadError(
                f"the engine process died while starting (exit status {process.returncode}); its error is above"
            )
        return await AsyncChannel.over(accept.result(), Codec[Any](m.FromCore))
    finally:
        for task in (accept, died):
            task.cancel()


async def _end(process: asyncio.subprocess.Process, patience: float = 1.0) -> None:
    """Wait for it to exit; kill it when patience runs out."""
    try:
        await asyncio.wait_for(process.wait(), patience)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
