"""The other ranks of an engine, on rank 0: their processes, their messages, and the reason of their end."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from thalweg.config import EngineArgs
from thalweg.engine import messages as m
from thalweg.engine.client.process import as_error
from thalweg.engine.executor.launcher import Launcher
from thalweg.engine.executor.member import PATIENCE_SECONDS, Member
from thalweg.engine.executor.messages import Beat, Begin, Launch, Leave, RankAnswer, RankCall, Regroup
from thalweg.engine.ipc.codec import FrameError
from thalweg.engine.ipc.socket import ChannelClosedError
from thalweg.errors import DeviceError, EngineDeadError, PeerError, RankLostError, ThalwegError
from thalweg.hal.platform import Place

M = TypeVar("M")
LOOK_SECONDS = 0.25
SOONER = 0.9
"""Part of hang_timeout after which a rank that holds up the others is named. The client ends a whole engine after the full
time."""


class RankGroup:
    """Starts the other ranks. If one ends, fails or hangs, `failure` names it. Then all are ended, unless the others can form a
    group again (`regroup`)."""

    def __init__(self, args: EngineArgs, places: Sequence[Place], launcher: Launcher) -> None:
        self.failure: ThalwegError | None = None
        self.ready = False
        """Every rank is built. Until then one may be silent for longer, as imports are."""
        self.abort: Callable[[], None] = lambda: None
        """Ends the collectives of rank 0. Set once its device is open."""
        self.on_failure: Callable[[ThalwegError], object] = lambda error: None
        """Called with `failure`."""
        self.stepping: Callable[[], float | None] = lambda: None
        """Since when a step of rank 0 has not ended. None: none runs."""
        self.regroups = launcher.regroups
        """The ranks that live may keep their weights. Their devices decide too."""
        self.rooms: list[int] = []
        """What the ranks agreed on for their KV caches (`BuildGroup.least`), in order."""
        self._args = args
        self._failed, self._closed = threading.Event(), threading.Event()
        self._peer_failure: ThalwegError | None = None
        """The error of a rank that only waited for another."""
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._launcher = launcher
        self.members: list[Member] = []
        try:
            self.places = launcher.place(places)
            self.members += launcher.start(self.places[1:])
            self._begin(self.members)
        except BaseException:
            self.close()
            raise

    def _begin(self, members: Sequence[Member]) -> None:
        """Let new ranks begin, and watch over all."""
        for each in members:
            self._send(each, each.channel.encode(Begin.at(each.place, each.args, self._launcher.regroups)))
        for each in members:
            threading.Thread(target=self._read, args=(each,), name=each.words, daemon=True).start()
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watcher.start()

    # ------------------------------------------------------------ messages

    def send(self, message: Launch | RankCall | Any) -> None:
        """Send to every other rank, encoded once. Raises the error that ended the group."""
        with self._sending:
            if not self.members:
                return
            frame = self.members[0].channel.encode(message)
            for each in self.members:
                self._send(each, frame)

    def _send(self, member: Member, frame: bytes) -> None:
        try:
            member.channel.send_frame(frame)
        except ChannelClosedError:
            raise self.explain(PeerError(f"{member.words} is gone", member.place.rank)) from None

    def collect(self, kind: type[M]) -> list[M]:
        """The next message of every other rank, in order. Raises the error that ended the group."""
        return [each.expect(kind) for each in self.members]

    def ask(self, call: RankCall) -> list[Future[Any]]:
        """Send an operation. The replies come in order of ranks."""
        replies: list[Future[Any]] = [Future() for _ in self.members]
        with self._lock:
            if self.failure is not None:
                raise self.failure
            for each, reply in zip(self.members, replies, strict=True):
                each.answers[call.number] = reply
        self.send(call)
        return replies

    # ------------------------------------------------------------ ends

    def fail(self, error: ThalwegError, lost: Member | None = None) -> None:
        """The first call decides: every waiting caller gets this error. All ranks end, or only `lost`, if `regroup` may
        follow."""
        with self._lock:
            if lost is not None:
                lost.lost = True
            if self.failure is not None or self._closed.is_set():
                return
            self.failure = error
            ending = [lost] if lost is not None and self.ready and self.regroups else self.members
            waiting = [reply for each in self.members for reply in each.answers.values()]
            for each in self.members:
                each.answers.clear()
                each.inbox.put(error)
        for reply in waiting:
            reply.set_exception(error)
        for each in ending:
            each.lost = True
            each.process.kill()
        self._launcher.release()  # which ends the waiting of those that are there
        self._failed.set()
        self.abort()
        self.on_failure(error)

    def explain(self, error: BaseException) -> BaseException:
        """The error to raise for an error of a rank. A rank that waited for another cannot tell why that one failed, so wait a
        moment for the cause."""
        if not isinstance(error, PeerError | DeviceError):
            return error
        if not self._failed.wait(PATIENCE_SECONDS):
            self.fail(self._peer_failure or error)
        return self.failure or error

    @property
    def can_regroup(self) -> bool:
        """Did some ranks outlive a failure?"""
        return self.failure is not None and self.ready and self.regroups and any(each.lost for each in self.members)

    def regroup(self) -> list[Member]:
        """Replace lost ranks by new processes, and let all others wait to join them: Join must follow, once the new ones have
        said Joining. Returns the new ones. RankLostError if a rank does not answer within heartbeat_timeout."""
        self.places = self._launcher.place(self.places)
        for each in self.members:
            each.place = self.places[each.place.rank]
            if not each.lost:
                self._send(each, each.channel.encode(Regroup(dict(each.place.environment))))
        for each in self.members:
            if not each.lost:
                each.wait_joining(self._args.heartbeat_timeout)
        self._watcher.join()
        lost = [each for each in self.members if each.lost]
        for each in lost:
            each.process.end()
            each.channel.shut()
        with self._lock:
            self.failure, self._peer_failure, self.ready = None, None, False
            self._failed.clear()
        started = self._launcher.start([each.place for each in lost])
        by_rank = {each.place.rank: each for each in started}
        self.members = [by_rank.get(each.place.rank, each) for each in self.members]
        self._begin(started)
        return started

    def finish(self, seconds: float) -> None:
        """Wait until every other rank has finished its steps, at most so long. `close` must follow."""
        self._closed.set()
        with contextlib.suppress(ThalwegError):
            self.send(Leave())
        until = time.monotonic() + seconds
        for each in self.members:
            with contextlib.suppress(queue.Empty):
                each.inbox.get(timeout=max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """End every other rank, and leave nothing behind. Safe to call twice."""
        self._closed.set()
        for each in self.members:
            each.process.end()
        for each in self.members:
            each.channel.shut()
        self._launcher.release()

    # ------------------------------------------------------------ threads

    def _read(self, member: Member) -> None:
        try:
            while True:
                message = member.channel.receive()
                member.heard = time.monotonic()
                if isinstance(message, Beat):
                    member.steps = message.steps
                elif isinstance(message, m.EngineFailed):
                    self._hear_failure(member, message)
                elif isinstance(message, RankAnswer):
                    self._give(member, message)
                else:
                    member.inbox.put(message)
        except ChannelClosedError:
            error = member.describe_end(self._peer_failure)
            self.fail(error, member)
            member.inbox.put(error)  # also where the group is being closed
        except FrameError as e:
            self.fail(EngineDeadError(f"{member.words}: {e}"), member)

    def _hear_failure(self, member: Member, failed: m.EngineFailed) -> None:
        error = as_error(m.EngineFailed(failed.kind, f"{member.words}: {failed.message}"))
        if isinstance(error, PeerError):
            self._peer_failure = self._peer_failure or error
            self.explain(error)
        else:
            self.fail(error, member)

    def _give(self, member: Member, answer: RankAnswer) -> None:
        with self._lock:
            reply = member.answers.pop(answer.number, None)
        if reply is None:
            return
        if answer.failed is None:
            reply.set_result(answer.value)
        else:
            reply.set_exception(as_error(m.EngineFailed(answer.failed.kind, f"{member.words}: {answer.failed.message}")))

    def _watch(self) -> None:
        """Name a rank that shows no life, or that the others wait for."""
        last = time.monotonic()
        while not (self._closed.wait(LOOK_SECONDS) or self._failed.is_set()):
            now = time.monotonic()
            slept, last = now - last, now
            if slept > LOOK_SECONDS + 1.0:  # this process itself was suspended: first read the frames that have come
                continue
            for each in self.members:
                name = "heartbeat_timeout" if self.ready else "hang_timeout"
                if (silent := now - each.heard) > getattr(self._args, name):
                    self.fail(RankLostError(f"{each.words} has given no sign of life for {silent:.1f} s ({name})"), each)
            since, behind = self.stepping(), min(self.members, key=lambda each: each.steps)
            if since is not None and now - since > SOONER * self._args.hang_timeout:
                self.fail(RankLostError(f"{behind.words} has finished no step for {now - since:.0f} s (hang_timeout)"), behind)
