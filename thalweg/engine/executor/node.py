"""A machine of several that hosts ranks, and serves nobody: `thalweg serve --headless`.

Its ranks are child processes, each connected to rank 0. When one ends, all are ended, started again, and wait at the door of
machine 0 for its next engine. This process ends when that of machine 0 has ended.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Iterator
from types import FrameType

from thalweg import __version__
from thalweg.config import EngineArgs
from thalweg.engine.client.frontend import locate
from thalweg.engine.executor.launcher import start_rank
from thalweg.engine.executor.messages import Hello, Refused
from thalweg.engine.executor.nodes import GREETINGS, model_digest
from thalweg.engine.ipc.door import UnreachableError, connect, introduce
from thalweg.engine.planning import resolve
from thalweg.errors import ConfigError, DeviceError
from thalweg.hal import discovery
from thalweg.host.processes import Process

log = logging.getLogger(__name__)
LOOK_SECONDS = 0.05


class _StoppedError(BaseException):
    """SIGTERM or SIGINT."""


class HeadlessNode:
    """The ranks of this machine."""

    def __init__(self, args: EngineArgs) -> None:
        """ConfigError, CheckpointError or DeviceError before any process starts."""
        check_node(args)
        self._args = args = locate(args).args
        self._platform = discovery.resolve_platform(args.device)
        places = resolve.places(args, self._platform)
        per_node = len(places) // args.nnodes
        self._places = places[args.node_rank * per_node :][:per_node]
        self._digest = model_digest(args)
        self._joined = False

    def run(self) -> int:
        """Until machine 0 is gone. The exit status: 1 if a rank here was the reason. DeviceError if machine 0 never answers."""
        status = 0
        while True:
            processes: list[Process] = []
            try:
                for place in self._places:
                    processes.append(self._join(place.rank))
                self._joined = True
                status = self._wait(processes)
            except UnreachableError as e:
                if not self._joined:
                    raise DeviceError(f"master_addr, master_port: {e}; is machine 0 running the same command?") from None
                log.warning("machine 0 has ended: %s", e)
                return status
            finally:
                for each in processes:
                    each.end()

    def _join(self, rank: int) -> Process:
        """A process that is this rank from now on."""
        args = self._args
        until = time.monotonic() + args.distributed_timeout_seconds
        with connect(args.master_addr, args.master_port, until, patient=not self._joined) as sock:
            hello = Hello(__version__, rank, self._places[0].world, args.nnodes, args.model, self._digest)
            answer = introduce(sock, GREETINGS, hello, until)
            if isinstance(answer, Refused):
                raise ConfigError(f"machine 0 refused rank {rank}: {answer.why}")
            log.info("rank %d of %d joined %s:%d", rank, self._places[0].world, args.master_addr, args.master_port)
            return start_rank(self._platform.name, sock.fileno())

    def _wait(self, processes: list[Process]) -> int:
        """Until one ends. 1 if it failed, else 0."""
        while True:
            for each, place in zip(processes, self._places, strict=True):
                code = each.returncode
                if code is not None:
                    said = signal.Signals(-code).name if code < 0 else f"exit status {code}"
                    log.warning("rank %d ended (%s); its place is offered again", place.rank, said)
                    return int(code > 0)
            time.sleep(LOOK_SECONDS)


def check_node(args: EngineArgs) -> None:
    """ConfigError unless these arguments describe a machine that hosts ranks."""
    if args.nnodes == 1:
        raise ConfigError("headless: there is one machine, and it serves; give --nnodes and --node-rank, or omit it")
    if args.node_rank == 0:
        raise ConfigError("headless: machine 0 serves; omit it, or give another --node-rank")


def host_ranks(args: EngineArgs) -> int:
    """Host the ranks of this machine until machine 0 ends, or a signal comes. The exit status."""
    with _stopping():
        try:
            return HeadlessNode(args).run()
        except _StoppedError:
            return 0


@contextlib.contextmanager
def _stopping() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise _StoppedError

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
