"""Ranks of several machines: those of this one are child processes, the others come to the engine's door."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from thalweg import __version__
from thalweg.config import EngineArgs
from thalweg.engine.executor.launcher import Launcher, MeetingFolder, start_children, with_meeting
from thalweg.engine.executor.member import Member, RemoteProcess, describe_rank
from thalweg.engine.executor.messages import FromRank, Hello, Refused, Welcome
from thalweg.engine.ipc.codec import Codec
from thalweg.engine.ipc.door import Door, free_port, opening
from thalweg.engine.ipc.pair import End
from thalweg.engine.ipc.socket import Channel
from thalweg.engine.planning import checkpoint_config
from thalweg.errors import DeviceError
from thalweg.hal.platform import MEETING, Place
from thalweg.host import envs
from thalweg.host.secrets import node_secret

log = logging.getLogger(__name__)
GREETINGS: Codec[Any] = Codec(Hello | Welcome | Refused)
CHECK_SECONDS = 0.5
INTERFACE = "GLOO_SOCKET_IFNAME"
"""Gloo would look up this machine's own name, which is often a loopback address."""


class NodesLauncher(Launcher):
    """This machine is node 0. Every other one runs `thalweg serve --headless` (`executor.node`)."""

    def __init__(self, args: EngineArgs) -> None:
        self._args, self._secret = args, node_secret(args.node_secret) or b""
        self._folder = MeetingFolder()

    def place(self, places: Sequence[Place]) -> tuple[Place, ...]:
        args = self._args
        with opening(args.master_addr, args.master_port) as door:
            environment = {} if (name := door.interface) is None else {INTERFACE: name}
        envs.set_unset(environment)
        environment[MEETING] = str(self._folder.path)
        per_node = len(places) // args.nnodes
        address = f"tcp://{args.master_addr}:{free_port(args.master_addr)}"
        return (*with_meeting(places[:per_node], address, **environment), *with_meeting(places[per_node:], address))

    def start(self, places: Sequence[Place]) -> list[Member]:
        args = self._args
        mine = (len(places) + 1) // args.nnodes - 1
        members = start_children(args, places[:mine])
        try:
            with opening(args.master_addr, args.master_port, self._secret) as door:
                until = time.monotonic() + args.distributed_timeout_seconds
                log.info(
                    "waiting at %s:%d for ranks %s, on %d further machines", args.master_addr, args.master_port,
                    _list(places[mine:]), args.nnodes - 1,
                )  # fmt: skip
                return [*members, *gather(args, places[mine:], door, until, self._describe_missing)]
        except BaseException:
            for each in members:
                each.process.end()
                each.channel.shut()
            raise

    def release(self) -> None:
        self._folder.remove()

    def _describe_missing(self, places: Sequence[Place]) -> str:
        args = self._args
        per_node = places[0].world // args.nnodes
        nodes = sorted({p.rank // per_node for p in places})
        each = " and ".join(f"--node-rank {n}" for n in nodes)
        return (
            f"{_list(places)} of {places[0].world} (machine {', '.join(map(str, nodes))} of {args.nnodes}) did not come to "
            f"{args.master_addr}:{args.master_port} within {args.distributed_timeout_seconds} s (distributed_timeout_seconds); "
            f"run the same command there with {each} --headless"
        )


def gather(
    args: EngineArgs, places: Sequence[Place], door: Door, until: float, describe_missing: Callable[[Sequence[Place]], str],
    check: Callable[[], None] = lambda: None,
) -> list[Member]:  # fmt: skip
    """A member for each place, from processes that come to the door until time.monotonic() `until`. One that comes again, as
    its machine was restarted meanwhile, replaces the first. DeviceError names the ranks that are missing. check: called now and
    then. Raises where waiting is in vain."""
    digest = model_digest(args)
    found: dict[int, Member] = {}
    turned_away = ""
    wanted = {p.rank: p for p in places}
    while len(found) < len(wanted):
        if time.monotonic() >= until:
            for each in found.values():
                each.channel.shut()
            missing = [p for p in places if p.rank not in found]
            reason = f". {turned_away or door.turned_away}" if turned_away or door.turned_away else ""
            raise DeviceError(f"device: rank{'s' if len(missing) > 1 else ''} {describe_missing(missing)}{reason}")
        came = door.admit(GREETINGS, min(until, time.monotonic() + CHECK_SECONDS))
        if came is None:
            check()
            continue
        sock, host, hello = came
        if not isinstance(hello, Hello):
            sock.close()
            continue
        why = _find_objection(args, hello, wanted, digest)
        if not _answer(sock, Refused(why) if why else Welcome()) or why:
            if why:
                turned_away = f"a process on {host} that offered to be rank {hello.rank} was refused: {why}"
                log.warning("%s", turned_away)
            continue
        if hello.rank in found:
            log.warning("rank %d came again, from %s", hello.rank, host)
            found[hello.rank].channel.shut()
        found[hello.rank] = _admit(args, wanted[hello.rank], sock, host, hello)
        log.info("rank %d joined, on %s", hello.rank, host)
    return [found[p.rank] for p in places]


def _admit(args: EngineArgs, place: Place, sock: End, host: str, hello: Hello) -> Member:
    channel = Channel(sock.detach(), Codec[Any](FromRank))
    there = msgspec.structs.replace(args, model=hello.model, use_tqdm_on_load=False)
    return Member(place, f"{describe_rank(place)} on {host}", RemoteProcess(channel), channel, there)


def _answer(sock: End, answer: Welcome | Refused) -> bool:
    """Did the process get it? If not, or if it is refused, the connection is closed."""
    try:
        sock.sendall(GREETINGS.encode(answer))
    except OSError:
        sock.close()
        return False
    if isinstance(answer, Refused):
        sock.close()
    return True


def _find_objection(args: EngineArgs, hello: Hello, wanted: dict[int, Place], digest: str) -> str:
    """Why the process cannot be the rank that it offers to be. "": it can."""
    world = next(iter(wanted.values())).world
    if hello.version != __version__:
        return f"it runs thalweg {hello.version}, and rank 0 runs {__version__}"
    if hello.world != world:
        return f"tensor_parallel_size: it counts {hello.world} ranks, and rank 0 counts {world}"
    if hello.nodes != args.nnodes:
        return f"nnodes: it counts {hello.nodes} machines, and rank 0 counts {args.nnodes}"
    if hello.rank not in wanted:
        return f"node_rank: rank {hello.rank} belongs to machine 0"
    if hello.digest != digest:
        return "model: its config.json is not the one of rank 0"
    return ""


def model_digest(args: EngineArgs) -> str:
    """Of the model's configuration, so that machines with different models are known before they load them."""
    config = checkpoint_config.read(args, Path(args.model))
    return hashlib.blake2b(json.dumps(config, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def _list(places: Sequence[Place]) -> str:
    return ", ".join(str(p.rank) for p in places)
