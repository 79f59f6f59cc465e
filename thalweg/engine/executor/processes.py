"""The executor `mp`: rank 0 in the engine's process, and a process for each other rank, on this machine or on several.

A batch goes to the other ranks before rank 0 plans it, as plans depend on a rank's heads. Every rank draws the same tokens, so
only the result of rank 0 is read. With pipeline stages it is that of one rank of the last stage. Encoders run on rank 0, and
their vectors are part of the batch.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

import msgspec

from thalweg.config import CacheConfig, EngineArgs, EngineConfig
from thalweg.engine import messages as m
from thalweg.engine.control.executor import Executor
from thalweg.engine.executor.group import RankGroup
from thalweg.engine.executor.inline import InlineExecutor, open_inline
from thalweg.engine.executor.launcher import Launcher, LocalLauncher
from thalweg.engine.executor.member import Member
from thalweg.engine.executor.messages import Join, Joining, Launch, RankCall, Room, StepDone, describe_own
from thalweg.engine.executor.nodes import NodesLauncher
from thalweg.engine.ipc.steps import read_step, write_step
from thalweg.engine.planning import resolve
from thalweg.engine.worker.build import BuildGroup, build
from thalweg.engine.worker.worker import Worker
from thalweg.errors import ConfigError, EngineDeadError
from thalweg.hal import discovery
from thalweg.hal.device import Device, Pending
from thalweg.hal.step import StepBatch, StepResult


class LeadingGroup(BuildGroup):
    """Decisions that rank 0 shares with the others while it builds its worker."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    def join(self) -> None:
        self._group.collect(Joining)
        self._group.send(Join())

    def on_open(self, device: Device) -> None:
        self._group.abort = device.abort
        if self._group.failure is not None:  # meanwhile
            device.abort()

    def least(self, room: int) -> int:
        least = min(room, *(r.bytes for r in self._group.collect(Room)))
        self._group.rooms.append(least)
        self._group.send(Room(least))
        return least


class RemoteStep:
    """A step with a result that another rank sends."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def ready(self) -> bool:
        return not self._member.inbox.empty()

    def result(self) -> StepResult:
        result: StepResult = read_step(self._member.expect(StepDone).result)
        return result


class RankedStep:
    """A step of all ranks."""

    def __init__(self, executor: ProcessExecutor, pending: Pending) -> None:
        self._executor, self._pending = executor, pending

    def ready(self) -> bool:
        return self._pending.ready()

    def result(self) -> StepResult:
        try:
            return self._pending.result()
        except Exception as e:
            raise self._executor.group.explain(e) from e
        finally:
            self._executor.finish_step()


class ProcessExecutor(InlineExecutor):
    """The worker of rank 0, with every step and operation also sent to the other ranks. Made once every rank is built."""

    def __init__(self, worker: Worker, group: RankGroup) -> None:
        super().__init__(worker)
        self.group = group
        self._launch = self._launch_on_ranks
        self._numbers = itertools.count()
        self._flying, self._progress = 0, 0.0
        group.stepping = lambda: self._progress if self._flying else None
        group.regroups = group.regroups and worker.device.regroups
        self._find_last()

    def _find_last(self) -> None:
        self._last = next((each for each in self.group.members if each.place.gives_results), None)
        """The rank of another pipeline stage that gives the results. None: rank 0 does."""

    def _launch_on_ranks(self, batch: StepBatch) -> Pending:
        self._progress = time.monotonic()
        self._flying += 1
        self.group.send(Launch(write_step(batch)))
        try:
            pending = self.worker.launch(batch)
            return RankedStep(self, pending if self._last is None else RemoteStep(self._last))
        except Exception as e:
            raise self.group.explain(e) from e

    def finish_step(self) -> None:
        self._flying -= 1
        self._progress = time.monotonic()

    def call(self, operation: str, /, *args: Any) -> list[Any]:
        """Returns or raises once every rank has answered. The error of rank 0 comes before those of the others, which are
        mostly the same."""
        replies = self.group.ask(RankCall(next(self._numbers), operation, list(args)))
        mine: Future[Any] = Future()
        try:
            mine.set_result(self.worker.call(operation, *args))
        except Exception as e:
            mine.set_exception(e)
        wait(replies)
        return [reply.result() for reply in (mine, *replies)]

    def watch(self, lost: Callable[[Exception], object]) -> None:
        self.group.on_failure = lost

    @property
    def can_regroup(self) -> bool:
        return self.group.can_regroup

    def regroup(self) -> None:
        group, device = self.group, self.worker.device
        try:
            started = group.regroup()
            for each in started:
                each.expect(Joining)
            group.send(Join())
            device.regroup(group.places[0])
            for room in group.rooms:  # the caches of those that live have their sizes
                for each in started:
                    each.expect(Room)
                    each.channel.send(Room(room))
            self.worker.rehearse()
            self.ranks = check_ranks(self.worker, group)
        except Exception as e:
            raise group.explain(e) from e
        self._flying = 0
        self._find_last()
        group.ready = True

    def close(self) -> None:
        self.group.close()
        super().close()


def open_processes(args: EngineArgs) -> Executor:
    """Build a worker per rank, all at once. Errors as in `build`. One of another rank is named with it. EngineDeadError if a
    rank ended without words. DeviceError names the ranks of a machine that did not come."""
    if args.node_rank:
        raise ConfigError(
            f"node_rank: machine 0 runs the engine, and machine {args.node_rank} hosts ranks of it; start it by "
            "thalweg serve MODEL --headless"
        )
    return open_ranks(args, NodesLauncher if args.nnodes > 1 else LocalLauncher)


def open_ranks(
    args: EngineArgs, launch: Callable[[EngineArgs], Launcher], make: type[ProcessExecutor] = ProcessExecutor
) -> Executor:
    """As `open_processes`, with the other ranks started by a launcher of these arguments."""
    platform = discovery.resolve_platform(args.device)
    places = resolve.places(args, platform)
    if len(places) == 1:
        return open_inline(args)
    if args.device == "auto":  # every rank opens the platform that this process chose
        args = msgspec.structs.replace(args, device=platform.name)
    group = RankGroup(args, places, launch(args))
    worker = None
    try:
        worker = build(args, place=group.places[0], group=LeadingGroup(group))
        ranks = check_ranks(worker, group)
        group.ready = True
        result = make(worker, group)
        result.ranks = ranks
        return result
    except BaseException as e:
        cause = group.explain(e)
        group.close()
        if worker is not None:
            worker.close()
        if cause is e:
            raise
        raise cause from e


def check_ranks(worker: Worker, group: RankGroup) -> list[m.RankFacts]:
    """Wait until every other rank is built. Returns the facts of all. EngineDeadError where one would run other steps."""
    facts = [describe_own(group.places[0])]
    for member, ready in zip(group.members, group.collect(m.Ready), strict=True):
        _check_alike(worker.config, ready.config, member.words)
        facts += ready.ranks
    return facts


def _check_alike(ours: EngineConfig, theirs: EngineConfig, words: str) -> None:
    """EngineDeadError where a rank would run other steps."""
    theirs = msgspec.structs.replace(theirs, model=msgspec.structs.replace(theirs.model, path=ours.model.path))
    for name in ("model", "cache", "scheduler"):
        mine, other = (_without_bytes(getattr(config, name)) for config in (ours, theirs))
        if mine != other:
            raise EngineDeadError(f"{words} disagrees with rank 0: {name} {other}, not {mine}")


def _without_bytes(part: Any) -> Any:
    """Blocks of pipeline stages differ in size only."""
    if not isinstance(part, CacheConfig):
        return part
    return msgspec.structs.replace(part, groups=tuple(replace(g, bytes_per_block=0) for g in part.groups))
