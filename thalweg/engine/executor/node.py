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
from dataclasses import dataclass
from types import FrameType

from thalweg import __version__
from thalweg.config import EngineArgs
from thalweg.engine.client.frontend import locate
from thalweg.engine.executor.launcher import start_rank
from thalweg.engine.executor.messages import Hello, Refused
from thalweg.engine.executor.nodes import GREETINGS, model_digest
from thalweg.engine.ipc.door import UnreachableError, connect, has_ended, introduce
from thalweg.engine.ipc.pair import End
from thalweg.engine.planning import resolve
from thalweg.errors import ConfigError, DeviceError
from thalweg.hal import discovery
from thalweg.host.processes import Process
from thalweg.host.secrets import node_secret

log = logging.getLogger(__name__)
LOOK_SECONDS = 0.05
LINGER_SECONDS = 1.0
"""Seconds in which a rank ends by itself after rank 0 has closed its connection."""


class _StoppedError(BaseException):
    """SIGTERM or SIGINT."""


@dataclass(frozen=True, slots=True)
class _LocalRank:
    """A rank of this machine. sock: its connection, which its process reads."""

    number: int
    process: Process
    sock: End


class HeadlessNode:
    """The ranks of this machine."""

    def __init__(self, args: EngineArgs) -> None:
        """ConfigError, CheckpointError or DeviceError before any process starts."""
        check_node(args)
        self._secret = node_secret(args.node_secret) or b""
        self._args = args = locate(args).args
        self._platform = discovery.resolve_platform(args.device)
        places = resolve.places(args, self._platform)
        per_node = len(places) // args.nnodes
        self._places = places[args.node_rank * per_node :][:per_node]
        self._digest = model_digest(args)
        self._joined = False

    def run(self) -> int:
        """Until machine 0 is gone. The exit status: 1 if a rank here was the reason. DeviceError if machine 0 never answers."""
        status, args = 0, self._args
        log.info(
            "machine %d of %d: ranks %s wait for machine 0 at %s:%d", args.node_rank, args.nnodes,
            ", ".join(str(p.rank) for p in self._places), args.master_addr, args.master_port,
        )  # fmt: skip
        while True:
            ranks: list[_LocalRank] = []
            try:
                for place in self._places:
                    ranks.append(self._join(place.rank))
                self._joined = True
                status = self._wait(ranks)
            except UnreachableError as e:
                if not self._joined:
                    raise DeviceError(f"master_addr, master_port: {e}; is machine 0 running the same command?") from None
                log.warning("machine 0 has ended: %s", e)
                return status
            finally:
                for each in ranks:
                    each.process.end()
                    each.sock.close()

    def _join(self, rank: int) -> _LocalRank:
        """A process that is this rank from now on."""
        args = self._args
        until = time.monotonic() + args.distributed_timeout_seconds
        sock = connect(args.master_addr, args.master_port, until, patient=not self._joined)
        try:
            hello = Hello(__version__, rank, self._places[0].world, args.nnodes, args.model, self._digest)
            answer = introduce(sock, GREETINGS, hello, until, self._secret)
            if isinstance(answer, Refused):
                raise ConfigError(f"machine 0 refused rank {rank}: {answer.why}")
            log.info("rank %d of %d joined %s:%d", rank, self._places[0].world, args.master_addr, args.master_port)
            return _LocalRank(rank, start_rank(self._platform.name, sock.fileno()), sock)
        except BaseException:
            sock.close()
            raise

    def _wait(self, ranks: list[_LocalRank]) -> int:
        """Until one ends, or rank 0 gives one up, as it does with a stopped process. 1 if one failed, else 0."""
        since = 0.0
        while True:
            for each in ranks:
                code = each.process.returncode
                if code is not None:
                    ending = signal.Signals(-code).name if code < 0 else f"exit status {code}"
                    log.warning("rank %d ended (%s); its place is offered again", each.number, ending)
                    return int(code > 0)
            since = since + LOOK_SECONDS if any(has_ended(each.sock) for each in ranks) else 0.0
            if since > LINGER_SECONDS:
                log.warning("rank 0 gave up a rank of this machine; its place is offered again")
                return 0
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
