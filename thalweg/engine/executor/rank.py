"""A rank of an engine other than the first: `python -m thalweg.engine.executor.rank FD DEVICE TIED`.

It builds its share of the model, then runs the batches and operations of rank 0, in their order. It makes no decisions. It
ends with its channel, and so with rank 0.
"""

from __future__ import annotations

import gc
import sys

if __name__ == "__main__":
    from thalweg.host.parent import die_with_parent

    if sys.argv[3] == "tied":
        die_with_parent()
    gc.disable()  # as in engine.main
    from thalweg.engine.worker.ahead import begin as start_ahead
    from thalweg.host import lossy

    lossy.install()
    start_ahead(sys.argv[2])

import contextlib
import logging
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from thalweg.engine import messages as m
from thalweg.engine.executor.messages import (
    Beat,
    Begin,
    Join,
    Joining,
    Launch,
    Leave,
    RankAnswer,
    RankCall,
    Regroup,
    Room,
    StepDone,
    Stepped,
    ToRank,
    describe_failure,
    describe_own,
)
from thalweg.engine.executor.nodes import INTERFACE
from thalweg.engine.ipc.codec import Codec, FrameError
from thalweg.engine.ipc.door import interface_at
from thalweg.engine.ipc.socket import Channel, ChannelClosedError
from thalweg.engine.ipc.steps import read_step, write_step
from thalweg.engine.worker.build import BuildGroup, build
from thalweg.engine.worker.stages.open import prepare
from thalweg.engine.worker.worker import CONCURRENT, Worker
from thalweg.errors import PeerError, ThalwegError
from thalweg.hal.device import Pending
from thalweg.hal.platform import MEETING, RENDEZVOUS, Place
from thalweg.host import envs

M = TypeVar("M")
BEAT_SECONDS = 0.5


class Feed:
    """Messages of rank 0. A thread reads them, so that the end of rank 0 ends this process in the middle of a step."""

    def __init__(self, channel: Channel, on_end: Callable[[], None] = lambda: os._exit(0)) -> None:
        """on_end: called by a thread where rank 0 has ended. No process is left to read a result."""
        self._channel = channel
        self.on_end = on_end
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.steps = 0
        threading.Thread(target=self._read, name="feed", daemon=True).start()
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def next(self) -> Any:
        message = self._inbox.get()
        if isinstance(message, FrameError | ChannelClosedError):
            raise message
        return message

    def expect(self, kind: type[M]) -> M:
        """The next message, which must be of this kind."""
        message = self.next()
        if not isinstance(message, kind):
            raise FrameError(f"this rank was to be sent {kind.__name__}, not {type(message).__name__}")
        return message

    def _read(self) -> None:
        try:
            while True:
                self._inbox.put(self._channel.receive())
        except ChannelClosedError as e:
            self.on_end()
            self._inbox.put(e)
        except FrameError as e:
            self._inbox.put(e)

    def _beat(self) -> None:
        with contextlib.suppress(ChannelClosedError):
            while True:
                self._channel.send(Beat(self.steps))
                time.sleep(BEAT_SECONDS)


class JoinedGroup(BuildGroup):
    """Decisions that this rank shares with rank 0."""

    def __init__(self, channel: Channel, feed: Feed) -> None:
        self._channel, self._feed = channel, feed

    def join(self) -> None:
        self._channel.send(Joining())
        self._feed.expect(Join)

    def least(self, room: int) -> int:
        self._channel.send(Room(room))
        return self._feed.expect(Room).bytes


class RankLoop:
    """Steps and operations, until the channel closes or rank 0 parts."""

    def __init__(
        self, worker: Worker, channel: Channel, feed: Feed, place: Place,
        on_stepped: Callable[[Stepped], None] | None = None, regroup: Callable[[Regroup], None] | None = None,
    ) -> None:  # fmt: skip
        """on_stepped: gets what rank 0's calls return, where this rank's program makes the same. regroup: joins another group
        after the loss of a rank. None: such a loss is raised."""
        self._worker, self._channel, self._feed = worker, channel, feed
        self._answers, self._on_stepped, self._regroup = place.gives_results, on_stepped, regroup
        self._stranded = False
        """Another rank was lost. Nothing is done until Regroup."""
        self._flying: deque[Pending] = deque()
        self._depth = worker.config.scheduler.pipeline_depth

    def run(self) -> None:
        """Until rank 0 parts. Raises the error of a step, and ChannelClosedError."""
        while True:
            message = self._feed.next()
            if isinstance(message, Regroup) and self._regroup is not None:
                self._flying.clear()
                self._regroup(message)
                self._stranded, self._feed.steps = False, 0
            elif self._stranded:
                continue
            elif isinstance(message, Launch):
                self._launch(message)
            elif isinstance(message, RankCall) and message.operation in CONCURRENT:
                threading.Thread(target=self._answer_later, args=(message,), name=message.operation, daemon=True).start()
            elif isinstance(message, RankCall):
                self._channel.send(self._answer(message))
            elif isinstance(message, Stepped) and self._on_stepped is not None:
                self._on_stepped(message)
            elif isinstance(message, Leave):
                while self._flying:
                    self._flying.popleft().result()
                return
            else:
                raise FrameError(f"{type(message).__name__} is only for the start")

    def _launch(self, message: Launch) -> None:
        try:
            self._run_step(message)
        except PeerError as e:
            if self._regroup is None:
                raise
            self._stranded = True
            self._channel.send(describe_failure(e))

    def _run_step(self, message: Launch) -> None:
        """A step's result is looked at for its error only, as late as rank 0 looks at its own."""
        flying = self._flying
        flying.append(self._worker.launch(read_step(message.batch)))
        while flying and (self._answers or len(flying) > self._depth or flying[0].ready()):
            result = flying.popleft().result()
            if self._answers:
                self._channel.send(StepDone(write_step(result)))
        self._feed.steps += 1

    def _answer_later(self, message: RankCall) -> None:
        with contextlib.suppress(ChannelClosedError):
            try:
                self._channel.send(self._answer(message))
            except ChannelClosedError:
                raise
            except Exception as e:
                self._channel.send(RankAnswer(message.number, None, describe_failure(e)))

    def _answer(self, message: RankCall) -> RankAnswer:
        try:
            return RankAnswer(message.number, self._worker.call(message.operation, *message.arguments))
        except (ThalwegError, OSError, ValueError) as e:
            return RankAnswer(message.number, None, m.EngineFailed(type(e).__name__, str(e)))


def main(fd: int) -> int:
    """Returns the exit status, where the process does not end with its channel."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides
    interface = interface_at(fd)
    channel = Channel(fd, Codec[Any](ToRank))
    feed = Feed(channel)
    begin = feed.expect(Begin)
    envs.set_unset({name: value for name, value in begin.environment.items() if name not in (RENDEZVOUS, MEETING)})
    if interface is not None:  # of this machine, where rank 0 is on another
        envs.set_unset({INTERFACE: interface})
    level = max(logging.getLevelName(envs.log_level()), logging.WARNING)  # rank 0 logs everything common to all ranks
    logging.basicConfig(
        level=level, datefmt="%H:%M:%S", format=f"%(levelname)s %(asctime)s rank {begin.rank} %(name)s: %(message)s"
    )
    try:
        prepare(begin.args.device, begin.args)
        group = JoinedGroup(channel, feed)
        worker = build(begin.args, place=begin.place, group=group)
        channel.send(m.Ready(worker.config, worker.plan, worker.load_seconds, [describe_own(begin.place)]))
        gc.freeze()
        gc.enable()

        def regroup(message: Regroup) -> None:
            group.join()
            worker.device.regroup(replace(begin.place, environment=message.environment))
            worker.rehearse()
            channel.send(m.Ready(worker.config, worker.plan, 0.0, [describe_own(begin.place)]))

        RankLoop(worker, channel, feed, begin.place, regroup=regroup if begin.regroups else None).run()
    except ChannelClosedError:
        return 0
    except Exception as e:
        with contextlib.suppress(ChannelClosedError):
            channel.send(describe_failure(e))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
