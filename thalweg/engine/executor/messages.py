"""Messages between rank 0 of an engine and its other ranks, which are child processes or processes of other machines."""

from __future__ import annotations

import os
import traceback
from typing import Any

import msgspec

from thalweg.checkpoint.safetensors import METER
from thalweg.config import EngineArgs
from thalweg.engine import messages as m
from thalweg.errors import ThalwegError
from thalweg.hal.platform import Place


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first message of a process of another machine, which offers to be a rank."""

    version: str
    rank: int
    world: int
    nodes: int
    model: str
    """The model's directory there."""
    digest: str
    """Of the model's configuration."""


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The connection is that of the rank from now on. Begin follows once every rank is there."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The process cannot be this rank, ever."""

    why: str


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The first message to a rank: its arguments, and its place (`hal.platform.Place`)."""

    args: EngineArgs
    rank: int
    world: int
    devices: list[int]
    environment: dict[str, str]
    stages: int = 1
    regroups: bool = False
    """Where another rank is lost, wait for Regroup. False: end."""

    @staticmethod
    def at(place: Place, args: EngineArgs, regroups: bool = False) -> Begin:
        return Begin(args, place.rank, place.world, list(place.devices), dict(place.environment), place.stages, regroups)

    @property
    def place(self) -> Place:
        return Place(self.rank, self.world, tuple(self.devices), self.environment, self.stages)


class Regroup(msgspec.Struct, frozen=True, tag=True):
    """A rank was lost, and this one keeps its weights. All meet again, by this environment. No step so far counts. Answered by
    Joining, and after Join by Ready."""

    environment: dict[str, str]


class Joining(msgspec.Struct, frozen=True, tag=True):
    """The rank opens its device next. Answered by Join, once every rank is there."""


class Join(msgspec.Struct, frozen=True, tag=True):
    """Every rank opens its device now."""


class Room(msgspec.Struct, frozen=True, tag=True):
    """What a rank has room for in its KV cache, as `BuildGroup.least`. Answered by the least over ranks."""

    bytes: int


class Launch(msgspec.Struct, frozen=True, tag=True):
    """A step, as `ipc.steps` writes it. The result is that of rank 0, or a StepDone of the last pipeline stage's first rank."""

    batch: Any


class StepDone(msgspec.Struct, frozen=True, tag=True):
    """The result of a step, as `ipc.steps` writes it."""

    result: Any


class RankCall(msgspec.Struct, frozen=True, tag=True):
    """An operation of the worker, after the steps launched so far. Answered by a RankAnswer of this number."""

    number: int
    operation: str
    arguments: list[Any]


class RankAnswer(msgspec.Struct, frozen=True, tag=True):
    number: int
    value: Any
    failed: m.EngineFailed | None = None


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Sent all the time by a thread. steps: launched so far."""

    steps: int


class Stepped(msgspec.Struct, frozen=True, tag=True):
    """What a call of rank 0's engine returned, for ranks whose programs make the same calls. requested: a checksum of all
    requests before it. reset: the answer to `reset_prefix_cache`."""

    requested: int
    outputs: m.Outputs | None
    reset: bool = False


class Leave(msgspec.Struct, frozen=True, tag=True):
    """No step follows. Answered by Left, once every step is finished."""


class Left(msgspec.Struct, frozen=True, tag=True):
    """The rank is in no exchange any more."""


ToRank = Begin | Regroup | Join | Room | Launch | RankCall | Stepped | Leave
FromRank = StepDone | Joining | Room | m.Ready | m.EngineFailed | RankAnswer | Beat | Left


def describe_own(place: Place) -> m.RankFacts:
    """This process, as a rank."""
    return m.RankFacts(place.rank, os.getpid(), METER.bytes)


def describe_failure(e: BaseException) -> m.EngineFailed:
    """Last words of a process. Errors raised on purpose carry their own. Of others the traceback goes to stderr."""
    if isinstance(e, ThalwegError):
        return m.EngineFailed(type(e).__name__, str(e))
    traceback.print_exception(e)
    return m.EngineFailed("EngineDeadError", f"{type(e).__name__}: {e}")
