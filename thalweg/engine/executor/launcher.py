"""How the ranks of an engine other than the first come to be, and where all of them meet: a launcher for each way."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from thalweg.config import EngineArgs
from thalweg.engine.executor.member import Member, describe_rank
from thalweg.engine.executor.messages import FromRank
from thalweg.engine.ipc.codec import Codec
from thalweg.engine.ipc.pair import pair
from thalweg.engine.ipc.socket import Channel
from thalweg.hal.platform import RENDEZVOUS, Place
from thalweg.host.processes import Process

FOLDER, OWNER = "thalweg-ranks-", "owner"


class Launcher(ABC):
    """Starts the other ranks of one engine."""

    regroups: bool = False
    """Where ranks are lost, `place` and `start` give others in their place."""

    @abstractmethod
    def place(self, places: Sequence[Place]) -> tuple[Place, ...]:
        """The places of all ranks, with the address where they meet."""

    @abstractmethod
    def start(self, places: Sequence[Place]) -> list[Member]:
        """The members of `places`, those of all ranks but the first. They wait for their Begin. Raises the error of one that
        does not come."""

    @abstractmethod
    def release(self) -> None:
        """The group has ended, well or not: no process waits at the meeting place any more. Safe to call twice."""


class LocalLauncher(Launcher):
    """Child processes on this machine, which meet in a folder."""

    def __init__(self, args: EngineArgs) -> None:
        self._args = args
        self._folder = MeetingFolder()

    regroups = True

    def place(self, places: Sequence[Place]) -> tuple[Place, ...]:
        if not self._folder.path.exists():  # an earlier group has ended
            self._folder = MeetingFolder()
        return with_meeting(places, f"file://{self._folder.path}")

    def start(self, places: Sequence[Place]) -> list[Member]:
        return start_children(self._args, places)

    def release(self) -> None:
        self._folder.remove()


def with_meeting(places: Sequence[Place], address: str, **environment: str) -> tuple[Place, ...]:
    """The places, with the address where their ranks meet, and further entries of their environment."""
    return tuple(replace(p, environment={**p.environment, RENDEZVOUS: address, **environment}) for p in places)


def start_children(args: EngineArgs, places: Sequence[Place]) -> list[Member]:
    """A child process for each place. All are ended if one cannot be started."""
    members: list[Member] = []
    try:
        for place in places:
            members.append(_start_child(args, place))
    except BaseException:
        for each in members:
            each.process.end()
            each.channel.shut()
        raise
    return members


def start_rank(device: str, descriptor: int) -> Process:
    """A rank's process, with rank 0 at the other end of a connected socket. It ends with that, and with this process."""
    tied = "tied" if threading.current_thread() is threading.main_thread() else "free"
    return Process("thalweg.engine.executor.rank", str(descriptor), device, tied, inherit=(descriptor,))


def _start_child(args: EngineArgs, place: Place) -> Member:
    here, there = pair()
    with there:
        try:
            process = start_rank(args.device, there.fileno())
        except BaseException:
            here.close()
            raise
    quiet = msgspec.structs.replace(args, use_tqdm_on_load=False)
    return Member(place, describe_rank(place), process, Channel(here.detach(), Codec[Any](FromRank)), quiet)


class MeetingFolder:
    """Where the ranks of this engine meet, in memory where the system has a place for that. Its maker holds a lock in it,
    so that folders of engines that were killed are known, and removed here."""

    def __init__(self) -> None:
        shared = Path("/dev/shm")
        home = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
        for old in home.glob(f"{FOLDER}*"):
            with contextlib.suppress(OSError):  # that of another user, or one in use
                with (old / OWNER).open("rb") as owner:
                    fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)
        self.path = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-", dir=home))
        self._owner = (self.path / OWNER).open("wb")
        fcntl.flock(self._owner, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._owner.close()
