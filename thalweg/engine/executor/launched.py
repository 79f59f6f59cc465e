"""The executor `external_launcher`: torchrun, or a launcher with the same variables, has started a process for each rank, and
every process runs the same program with `LLM(...)`.

Rank 0 schedules. The others run its batches on a thread, and their `step` returns its outputs. All ranks thus get the same
text, although their clocks differ. Each rank checks that the others asked for the same requests.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import queue
import secrets
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec

from thalweg import __version__
from thalweg.config import EngineArgs
from thalweg.engine import messages as m
from thalweg.engine.control.core import EngineCore
from thalweg.engine.control.executor import Executor
from thalweg.engine.executor.inline import InlineExecutor, open_inline
from thalweg.engine.executor.launcher import Launcher, MeetingFolder, with_meeting
from thalweg.engine.executor.member import Member, describe_rank
from thalweg.engine.executor.messages import Begin, Hello, Left, Refused, Stepped, ToRank, describe_failure
from thalweg.engine.executor.nodes import GREETINGS, gather, model_digest
from thalweg.engine.executor.processes import ProcessExecutor, open_ranks
from thalweg.engine.executor.rank import Feed, JoinedGroup, RankLoop
from thalweg.engine.ipc.codec import Codec
from thalweg.engine.ipc.door import Door, connect, free_port, introduce
from thalweg.engine.ipc.port import listen
from thalweg.engine.ipc.socket import Channel, ChannelClosedError
from thalweg.engine.planning import resolve
from thalweg.engine.worker.build import build
from thalweg.engine.worker.stages.open import prepare
from thalweg.engine.worker.worker import Worker
from thalweg.errors import ConfigError, DeviceError, EngineDeadError
from thalweg.hal import discovery
from thalweg.hal.platform import Place
from thalweg.host import envs
from thalweg.options.kv_store import transfer

LEAVE_SECONDS = 10.0
"""Longest wait for the other ranks at the end of a program."""
_REQUESTS = Codec[Any](m.Add)
_engines = itertools.count()
"""Engines that this process has opened. Every rank counts alike, as all run one program."""


def open_launched(args: EngineArgs) -> Executor:
    """This process's part of the engine. ConfigError names a variable of the launcher that is missing or does not fit."""
    launch = envs.read_launcher()
    platform = discovery.resolve_platform(args.device)
    places = resolve.places(args, platform)
    if launch.world != len(places):
        raise ConfigError(
            f"distributed_executor_backend: the launcher started {launch.world} processes (WORLD_SIZE), and "
            f"tensor_parallel_size {args.tensor_parallel_size} on platform {platform.name!r} needs {len(places)}"
            f"{'' if args.pipeline_parallel_size == 1 else f' with {args.pipeline_parallel_size} pipeline stages'}"
        )
    if launch.world == 1:
        return open_inline(args)
    if args.enable_lora:
        raise ConfigError("enable_lora: ranks that a launcher starts load no adapters yet; use the executor mp")
    if transfer(args) is not None:
        raise ConfigError("kv_transfer_config: ranks that a launcher starts store no blocks yet; use the executor mp")
    if launch.local_world < launch.world:
        resolve.check_stages_on_one_machine(args)
    prepare(args.device, args)  # first: the platform decides how its framework is imported
    key = f"thalweg/{next(_engines)}"
    if launch.rank == 0:
        executor = open_ranks(args, lambda given: ProgramLauncher(given, launch, key), LeadingExecutor)
    else:
        executor = _follow(args, places[launch.rank], launch, key)
    atexit.register(executor.close)
    return executor


@contextlib.contextmanager
def _store(launch: envs.LaunchedProcess, seconds: float) -> Iterator[Any]:
    """The launcher's store of keys and values, or that of rank 0 where the launcher has none."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        yield TCPStore(
            launch.host, launch.port, launch.world, is_master=launch.rank == 0 and not launch.has_store,
            timeout=timedelta(seconds=seconds), wait_for_workers=False, multi_tenant=True,
        )  # fmt: skip
    except (RuntimeError, ValueError) as e:  # of torch.distributed
        raise DeviceError(
            f"device: rank {launch.rank} of {launch.world} got no answer at MASTER_ADDR:MASTER_PORT "
            f"({launch.host}:{launch.port}): {str(e).splitlines()[0]}"
        ) from None


class ProgramLauncher(Launcher):
    """The other ranks are running already, and come to the port that rank 0 publishes."""

    def __init__(self, args: EngineArgs, launch: envs.LaunchedProcess, key: str) -> None:
        self._args, self._launch, self._key = args, launch, key
        self._folder = MeetingFolder() if launch.local_world == launch.world else None

    def place(self, places: Sequence[Place]) -> tuple[Place, ...]:
        host = self._launch.host
        address = f"file://{self._folder.path}" if self._folder is not None else f"tcp://{host}:{free_port(host)}"
        first = replace(places[0], devices=(self._launch.local_rank,))
        return with_meeting((first, *places[1:]), address)

    def start(self, places: Sequence[Place]) -> list[Member]:
        args, launch = self._args, self._launch
        until = time.monotonic() + args.distributed_timeout_seconds
        with listen(launch.host, 0) as sock, _store(launch, args.distributed_timeout_seconds) as store:
            secret = secrets.token_bytes()
            door = Door(sock, secret)
            store.set(self._key, f"{door.port} {secret.hex()}")
            return gather(args, places, door, until, self._describe_missing)

    def release(self) -> None:
        if self._folder is not None:
            self._folder.remove()

    def _describe_missing(self, places: Sequence[Place]) -> str:
        ranks = ", ".join(str(p.rank) for p in places)
        return (
            f"{ranks} of {self._launch.world} made no LLM(...) within {self._args.distributed_timeout_seconds} s "
            "(distributed_timeout_seconds); every rank runs the same program"
        )


class _LeadingCore(EngineCore):
    """The core of rank 0, which tells the others what each call returned."""

    _executor: LeadingExecutor
    _asked = 0

    def add(self, requests: Sequence[m.EngineRequest]) -> None:
        self._asked = _digest(self._asked, requests)
        super().add(requests)

    def step(self) -> m.Outputs | None:
        outputs = super().step()
        self._executor.group.send(Stepped(self._asked, outputs))
        return outputs

    def reset_prefix_cache(self) -> bool:
        done = super().reset_prefix_cache()
        self._executor.group.send(Stepped(self._asked, None, done))
        return done


class _FollowingCore(EngineCore):
    """The core of another rank: requests are only counted, and outputs are those of rank 0."""

    _executor: FollowingExecutor
    _asked = 0

    def add(self, requests: Sequence[m.EngineRequest]) -> None:
        self._asked = _digest(self._asked, requests)

    def abort(self, handles: Sequence[int]) -> None:
        return

    def step(self) -> m.Outputs | None:
        outputs = self._executor.receive(self._asked).outputs
        if outputs is not None:
            outputs.time = self._clock()
        return outputs

    def reset_prefix_cache(self) -> bool:
        return self._executor.receive(self._asked).reset


class LeadingExecutor(ProcessExecutor):
    """Rank 0."""

    core_type = _LeadingCore

    def close(self) -> None:
        """Wait until the others have run every step: they may be in the middle of an exchange with this rank."""
        if self.open:
            self.group.finish(LEAVE_SECONDS)
            atexit.unregister(self.close)
        super().close()


class FollowingExecutor(InlineExecutor):
    """Another rank. A thread runs the batches of rank 0, so that rank 0 never waits for this rank's program."""

    core_type = _FollowingCore

    def __init__(self, worker: Worker, channel: Channel, feed: Feed, place: Place) -> None:
        super().__init__(worker)
        self._channel, self._words = channel, describe_rank(place)
        self._stepped: queue.SimpleQueue[Stepped | BaseException] = queue.SimpleQueue()
        self._loop = RankLoop(worker, channel, feed, place, self._stepped.put)
        self._thread = threading.Thread(target=self._run, name="rank", daemon=True)
        self._thread.start()

    def call(self, operation: str, /, *args: Any) -> list[Any]:
        """Nothing: operations come from rank 0."""
        return []

    def enter(self) -> None:
        return

    def receive(self, requested: int) -> Stepped:
        """What the next call of rank 0 returned. EngineDeadError if there is none, or its program asked for other requests
        than this one's `requested`."""
        stepped = self._stepped.get()
        if isinstance(stepped, BaseException):
            self._stepped.put(stepped)
            raise stepped
        if stepped.requested != requested:
            raise EngineDeadError(
                f"{self._words} asked for other requests than rank 0: under a launcher every rank makes the same calls"
            )
        return stepped

    def close(self) -> None:
        """Once rank 0 has ended its engine, or has had time to."""
        if self.open:
            self._thread.join(LEAVE_SECONDS)
            self._channel.shut()
            self._thread.join(1.0)
            atexit.unregister(self.close)
            super().close()

    def _run(self) -> None:
        self.worker.device.enter()
        try:
            self._loop.run()
        except ChannelClosedError:
            self._stepped.put(EngineDeadError(f"rank 0 has ended; {self._words} cannot go on without it"))
        except Exception as e:
            with contextlib.suppress(ChannelClosedError):
                self._channel.send(describe_failure(e))
            self._stepped.put(e)
        else:
            with contextlib.suppress(ChannelClosedError):
                self._channel.send(Left())
            self._stepped.put(EngineDeadError("rank 0 has shut the engine down"))


def _follow(args: EngineArgs, place: Place, launch: envs.LaunchedProcess, key: str) -> FollowingExecutor:
    """Join rank 0, and build this rank's worker."""
    until = time.monotonic() + args.distributed_timeout_seconds
    with _store(launch, args.distributed_timeout_seconds) as store:
        port, secret = store.get(key).decode().split()
    words = f"rank {launch.rank} of {launch.world}"
    with connect(launch.host, int(port), until, patient=False) as sock:
        hello = Hello(__version__, launch.rank, launch.world, args.nnodes, args.model, model_digest(args))
        answer = introduce(sock, GREETINGS, hello, until, bytes.fromhex(secret))
        if isinstance(answer, Refused):
            raise ConfigError(f"rank 0 refused {words}: {answer.why}")
        channel = Channel(sock.detach(), Codec[Any](ToRank))
    feed = Feed(channel, on_end=lambda: None)
    try:
        begin = feed.expect(Begin)
        given = msgspec.structs.replace(begin.args, model=args.model)
        here = replace(begin.place, devices=(launch.local_rank,))
        worker = build(given, place=here, group=JoinedGroup(channel, feed))
        channel.send(m.Ready(worker.config, worker.plan, worker.load_seconds))
    except ChannelClosedError:
        raise EngineDeadError(f"rank 0 ended while {words} started") from None
    except Exception as e:
        with contextlib.suppress(ChannelClosedError):
            channel.send(describe_failure(e))
        channel.shut()
        raise
    feed.on_end = worker.device.abort
    return FollowingExecutor(worker, channel, feed, here)


def _digest(requested: int, requests: Sequence[m.EngineRequest]) -> int:
    """A checksum of all requests so far, with their sampling parameters."""
    return zlib.crc32(_REQUESTS.encode(m.Add(list(requests))), requested)
