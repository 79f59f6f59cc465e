"""Jobs for confined processes, with types: a task goes in, a result or a refusal comes back.

`Jobs` is the side of the caller, on top of `host.cells`. `serve` is the main loop of a process that does one kind of job, on
top of `host.confined`. A kind of job is a type of task, a type of result, and a function from one to the other. Messages are
MessagePack of closed types, so nothing that could run code is decodable.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from thalweg.host.cells import Cells
from thalweg.host.confined import ConfinedProcess, frame_body

Task = TypeVar("Task")
Result = TypeVar("Result")
MEMORY = "memory"
"""`TaskRefused.why` of a job over its memory limit, or with a result too large to send."""
KEPT_BYTES = 64 << 20
"""Bytes of growth after which a process retires."""


class TaskLimits(msgspec.Struct, frozen=True):
    """Limits of a job. seconds: of processor time. wall: seconds of the clock. memory: bytes beyond an idle process."""

    seconds: float
    wall: float
    memory: int


class TaskFrame(msgspec.Struct, Generic[Task], frozen=True):
    task: Task
    limits: TaskLimits


class TaskDone(msgspec.Struct, Generic[Result], frozen=True, tag=True):
    """last: the process ends now. Another one is used for the next job."""

    result: Result
    last: bool = False


class TaskRefused(msgspec.Struct, frozen=True, tag=True):
    """why: a word that the caller knows. detail: words of ours, never of a library. place: where in the task."""

    why: str
    detail: str = ""
    place: str = ""
    last: bool = False


class TaskRefusedError(Exception):
    """The task cannot be done, and why: as `TaskRefused`."""

    def __init__(self, why: str, detail: str = "", place: str = "", last: bool = False) -> None:
        """last: the process is unfit for another task."""
        super().__init__(why, detail)
        self.why, self.detail, self.place, self.last = why, detail, place, last


class Jobs(Generic[Task, Result]):
    """Up to `most` processes that do one kind of job. Thread-safe. They start when first needed, or with `prepare`. They end
    with this object or this process."""

    def __init__(
        self, module: str, most: int, result: type[Result], opening: Callable[[], bytes] | None = None, forks: bool = False
    ) -> None:
        """module: the module of a process. It calls `serve`. opening: a frame that a process gets before its first job. forks:
        the process runs jobs in forks of itself, and outlives a fork's last answer."""
        reply: Any = TaskDone[result] | TaskRefused  # type: ignore[valid-type]
        self._decoder: msgspec.msgpack.Decoder[TaskDone[Result] | TaskRefused] = msgspec.msgpack.Decoder(reply)
        self._cells = Cells(module, most, lambda body: not forks and self._decoder.decode(body).last, opening)
        self.prepare, self.close, self.pids = self._cells.prepare, self._cells.close, self._cells.pids

    def run(self, task: Task, limits: TaskLimits) -> Result:
        """Raises TaskRefusedError, and CpuLimitError, CrashedError, StalledError or LostError of `host.cells`."""
        return self.send(frame_job(task, limits), limits.wall + limits.seconds)

    def send(self, job: bytes, wall: float) -> Result:
        """`run` for a framed job. wall: seconds of the clock until it is abandoned."""
        reply = self._decoder.decode(self._cells.ask(job, wall))
        if isinstance(reply, TaskRefused):
            raise TaskRefusedError(reply.why, reply.detail, reply.place)
        return reply.result


def frame_job(task: Any, limits: TaskLimits) -> bytes:
    """The frame of a job. ValueError if it is too long, and for values that have no place in MessagePack ValueError, TypeError,
    OverflowError or RecursionError."""
    return frame_body(msgspec.msgpack.encode(TaskFrame(task, limits)))


def serve(task: type[Any], work: Callable[[Any], Any], kept: int = KEPT_BYTES, retired: int = 0) -> int:
    """Do jobs until none come: the main function of a process. It can open nothing from here on. Returns its exit status.

    task: the type of tasks. work: from a task to a result. It may raise TaskRefusedError. kept: bytes of growth after which the
    process retires. retired: its status then."""
    process = ConfinedProcess()
    gc.freeze()
    decoder = msgspec.msgpack.Decoder(TaskFrame[task])  # type: ignore[valid-type]
    return process.serve(decoder.decode, partial(_answer, process, work, kept), _frame_reply, retired)


def _answer(
    process: ConfinedProcess, work: Callable[[Any], Any], kept: int, job: TaskFrame[Any]
) -> TaskDone[Any] | TaskRefused:
    limits = job.limits
    with process.limit(limits.seconds, limits.wall, limits.memory):
        try:
            result = work(job.task)
        except MemoryError:
            process.limit_memory(None)
            return TaskRefused(MEMORY, last=True)
        except TaskRefusedError as e:
            return TaskRefused(e.why, e.detail, e.place, last=e.last or process.grown() > kept)
    return TaskDone(result, last=process.grown() > kept)


def _frame_reply(reply: TaskDone[Any] | TaskRefused) -> bytes:
    try:
        return frame_body(msgspec.msgpack.encode(reply))
    except ValueError:
        return frame_body(msgspec.msgpack.encode(TaskRefused(MEMORY, last=True)))
