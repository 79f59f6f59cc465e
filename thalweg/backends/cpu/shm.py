"""Collectives of the processes of one machine over shared memory, as calls of the compiled library (src/ranks.cpp).

The ranks meet in a folder that only their run uses. Each locks a file there for as long as it lives, so that its peers notice
its end. Once all have opened everything the files are removed, and nothing is left however the run ends. Put the folder on a
file system in memory (/dev/shm): exchanged data need not reach a disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from thalweg.backends.cpu.native import NativeLibrary
from thalweg.backends.tensors import join_parts, sum_parts
from thalweg.errors import DeviceError, PeerError
from thalweg.hal.comm import Communicator
from thalweg.hal.platform import RENDEZVOUS, Place

SLOT = 1 << 20
"""Upper bound of the bytes of an exchange. Each rank has two slots of this size in the shared file. Larger messages need
several exchanges."""
SUMMED = {torch.bfloat16: 0, torch.float32: 1}
"""Types that the library sums, as numbered in core.h. Others are gathered, and summed by torch."""
REASONS = (
    "",
    "ended",
    "left the group",
    "was waited for when the group was aborted",
    "made another call, or one of another size",
)
"""Why an exchange failed, as numbered in ranks.cpp, said of a rank."""


class ShmCommunicator(Communicator):
    """Ranks of one model on one machine. Opening it waits until all are there, at most `timeout` seconds."""

    regroups = True

    def __init__(
        self, library: NativeLibrary, place: Place, members: Sequence[int] | None = None, timeout: float = 300.0
    ) -> None:
        """members: the ranks that exchange, by their numbers in the world, in order. None: all."""
        self._members = members or range(place.world)
        self.size, self._rank, self._library = len(self._members), self._members.index(place.rank), library
        self._world, self._timeout = place.world, timeout
        self._guard = threading.Lock()
        """Of the handle, which another thread may ask to abort."""
        self._files = contextlib.ExitStack()
        self._ranks = 0
        self.regroup(place)
        library.describe_failure = self.describe_failure

    @property
    def exchanges(self) -> int:
        """Exchanges so far."""
        return int(self._library.ranks_number(self._ranks))

    def all_reduce(self, x: Tensor) -> Tensor:
        kind = SUMMED.get(x.dtype)
        if kind is None:
            return sum_parts(self._gather(x))
        x = x.contiguous()
        if x.numel():
            self._check(
                self._library.all_reduce(self._library.context, self._ranks, kind, x.data_ptr(), x.numel(), x.data_ptr())
            )
        return x

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        x, dim = x.contiguous(), dim % x.ndim
        out = x.new_empty((*x.shape[:dim], self.size * x.shape[dim], *x.shape[dim + 1 :]))
        if x.numel():
            rows = math.prod(x.shape[:dim])
            at, to = x.data_ptr(), out.data_ptr()
            self._check(self._library.all_gather(self._library.context, self._ranks, at, rows, x.nbytes // rows, to))
        return out

    def part(self, x: Tensor, dim: int = -1) -> Tensor:
        size = self.part_size(x.shape, dim)
        return x.narrow(dim, self._rank * size, size)

    def reduce_scatter(self, x: Tensor, dim: int = -1) -> Tensor:
        self.part_size(x.shape, dim)
        return self.part(self.all_reduce(x.clone(memory_format=torch.contiguous_format)), dim).contiguous()

    def all_to_all(self, x: Tensor, dim: int = 0) -> Tensor:
        self.part_size(x.shape, dim)
        return join_parts(self.part(self._gather(x), dim % x.ndim + 1), dim)

    def regroup(self, place: Place) -> None:
        self.close()
        try:
            self._join(_folder(place, self._members), time.monotonic() + self._timeout, self._timeout)
        except BaseException:
            self.close()
            raise

    def abort(self) -> None:
        with self._guard:
            if self._ranks:
                self._library.ranks_abort(self._ranks)

    def close(self) -> None:
        with self._guard:
            if self._ranks:
                self._library.ranks_close(self._ranks)
                self._ranks = 0
        self._files.close()

    def describe_failure(self, failed: int) -> PeerError:
        """The library's return code as an error."""
        why, rank = failed >> 16, failed & 0xFFFF
        number = self._members[rank]
        return PeerError(f"{self._name(rank)} {REASONS[why]}: rank {self._members[self._rank]} cannot go on without it", number)

    def _name(self, rank: int) -> str:
        return f"rank {self._members[rank]} of {self._world}"

    def _gather(self, x: Tensor) -> Tensor:
        """Every rank's x: [size, *x.shape]."""
        return self.all_gather(x.unsqueeze(0), 0)

    def _check(self, failed: int) -> None:
        if failed:
            raise self.describe_failure(failed)

    def _join(self, folder: Path, deadline: float, timeout: float) -> None:
        """Files appear under their names when they are ready. The first exchange is the agreement that all have opened them."""
        bytes_ = int(self._library.ranks_bytes(self.size, SLOT))
        with _appearing(folder / f"rank-{self._rank}") as own:
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._files.callback(os.close, own)
        if self._rank == 0:
            with _appearing(folder / "exchange") as shared:
                self._files.callback(os.close, shared)
                _reserve(shared, bytes_, folder)
        locks: list[int] = []
        for rank in range(self.size):
            locks.append(self._open(folder / f"rank-{rank}", rank, deadline, timeout, lambda: locks))
        file = self._open(folder / "exchange", 0, deadline, timeout, lambda: locks)
        descriptors = (ctypes.c_int * self.size)(*locks)
        self._ranks = self._library.ranks_open(file, self._rank, self.size, SLOT, descriptors) or 0
        if not self._ranks:
            raise DeviceError(f"device: {self._name(self._rank)} cannot map {bytes_:,} bytes of {folder / 'exchange'}")
        try:
            self.all_gather(torch.zeros(1, dtype=torch.uint8))
        except PeerError as e:
            raise DeviceError(f"device: {e}") from e
        for name in (f"rank-{self._rank}", *(("exchange",) if self._rank == 0 else ())):
            (folder / name).unlink(missing_ok=True)

    def _open(self, path: Path, rank: int, deadline: float, timeout: float, locks: Callable[[], list[int]]) -> int:
        """A file that this rank makes, waited for while those that were there go on living."""
        while True:
            with contextlib.suppress(FileNotFoundError):
                opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                self._files.callback(os.close, opened)
                return opened
            for other, lock in enumerate(locks()):
                if other != self._rank and not _is_locked(lock):
                    raise DeviceError(f"device: {self._name(other)} ended while the ranks met")
            if not path.parent.exists():
                raise DeviceError(f"device: {self._name(self._rank)} met no other rank: {path.parent} was removed")
            if time.monotonic() > deadline:
                raise DeviceError(
                    f"device: {self._name(rank)} did not come to {path.parent} within {timeout:g} s; rank "
                    f"{self._members[self._rank]} waited for it"
                )
            time.sleep(0.002)


def _folder(place: Place, members: Sequence[int]) -> Path:
    """Where these ranks meet: a folder in that of the run, unless they are all of its ranks."""
    where = place.environment.get(RENDEZVOUS)
    who = f"device: rank {place.rank} of {place.world}"
    if not where:
        raise DeviceError(f"{who} has no address where the ranks meet")
    if not where.startswith("file://"):
        raise DeviceError(f"{who}: ranks of the cpu meet in a folder of one machine, file:///path, and not at {where}")
    folder = Path(where.removeprefix("file://"))
    if len(members) < place.world:
        folder /= "-".join(map(str, members))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _appearing(path: Path) -> Iterator[int]:
    """A new file's descriptor. The file has its name once the block ends well."""
    unready = path.with_suffix(".new")
    unready.unlink(missing_ok=True)
    result = os.open(unready, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    yield result
    unready.replace(path)


def _reserve(file: int, size: int, folder: Path) -> None:
    """Now, as a write to a full file system would end the process."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:
            os.ftruncate(file, size)
    except OSError as e:
        raise DeviceError(f"device: {folder} has no room for {size:,} bytes that ranks share: {e.strerror}") from None


def _is_locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(lock, fcntl.LOCK_UN)
    return False
