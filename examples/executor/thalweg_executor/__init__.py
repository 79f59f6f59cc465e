"""An executor whose worker is in a child process. Steps and operations go over a socket pair, and are answered in order."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec

from thalweg.config import EngineArgs, EngineConfig
from thalweg.engine import messages as m
from thalweg.engine.client.process import as_error
from thalweg.engine.control.executor import Executor
from thalweg.engine.ipc.codec import Codec, FrameError
from thalweg.engine.ipc.pair import pair
from thalweg.engine.ipc.socket import Channel, ChannelClosedError
from thalweg.engine.ipc.steps import read_step, write_step
from thalweg.errors import EngineDeadError
from thalweg.hal.device import Pending
from thalweg.hal.step import StepBatch, StepResult
from thalweg.host.processes import Process


class Launch(msgspec.Struct, tag=True):
    batch: Any


class Call(msgspec.Struct, tag=True):
    operation: str
    arguments: list[Any]


class Answer(msgspec.Struct, tag=True):
    """To a Launch its result, to a Call its reply."""

    value: Any


ToChild = m.Start | Launch | Call
FromChild = m.Ready | m.EngineFailed | Answer


class Later:
    """A step whose result comes from the child."""

    def __init__(self, answer: Future[Any]) -> None:
        self._answer = answer

    def ready(self) -> bool:
        return self._answer.done()

    def result(self) -> StepResult:
        result: StepResult = read_step(self._answer.result())
        return result


class ChildExecutor(Executor):
    def __init__(self, process: Process, channel: Channel, ready: m.Ready) -> None:
        self._process, self._channel, self._ready = process, channel, ready
        self._waiting: deque[Future[Any]] = deque()
        self._dead = ""
        threading.Thread(target=self._read, name="child", daemon=True).start()

    @property
    def config(self) -> EngineConfig:
        return self._ready.config

    @property
    def plan(self) -> list[str]:
        return self._ready.plan

    @property
    def load_seconds(self) -> float:
        return self._ready.load_seconds

    @property
    def encoder(self) -> None:
        return None

    @property
    def launch(self) -> Callable[[StepBatch], Pending]:
        return lambda batch: Later(self._ask(Launch(write_step(batch))))

    def call(self, operation: str, /, *args: Any) -> list[Any]:
        return [self._ask(Call(operation, list(args))).result()]

    def enter(self) -> None:
        return

    def close(self) -> None:
        self._process.end()

    def _ask(self, message: Launch | Call) -> Future[Any]:
        answer: Future[Any] = Future()
        self._waiting.append(answer)
        try:
            self._channel.send(message)
        except ChannelClosedError as e:
            self._dead = self._dead or str(e)
        if self._dead:  # the reader has gone, or goes
            self._fail()
        return answer

    def _read(self) -> None:
        """Each message answers the oldest question."""
        try:
            while True:
                message = self._channel.receive()
                answer = self._waiting.popleft()
                if isinstance(message, Answer):
                    answer.set_result(message.value)
                else:
                    answer.set_exception(as_error(message))
        except (ChannelClosedError, FrameError) as e:
            self._dead = str(e)
            self._fail()

    def _fail(self) -> None:
        with contextlib.suppress(IndexError):  # two threads may be here
            while True:
                answer = self._waiting.popleft()
                answer.set_exception(EngineDeadError(f"the worker's process {self._process.pid} is gone: {self._dead}"))


def open_child(args: EngineArgs) -> ChildExecutor:
    """Start the child and wait until its worker is built. Raises what it said if it could not be."""
    here, there = pair()
    process = Process("thalweg_executor.child", str(there.fileno()), inherit=[there.fileno()])
    there.close()
    channel = Channel(here.detach(), Codec[Any](FromChild))
    try:
        channel.send(m.Start(args))
        first = channel.receive()
    except ChannelClosedError as e:
        process.end()
        raise EngineDeadError(f"the worker's process died while starting (exit status {process.returncode}): {e}") from None
    if isinstance(first, m.EngineFailed):
        process.end()
        raise as_error(first)
    return ChildExecutor(process, channel, first)
