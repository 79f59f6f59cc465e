"""Collectives by torch.distributed: NCCL, RCCL (which goes by the same name), XCCL, and gloo on the host.

One group serves the whole process. The calls enqueue on the current stream, as kernels do. A graph thus holds them too where
the library allows it (NCCL and RCCL do, XCCL does not yet). Gloo's calls go on in threads after they return, and are waited for
outside of the operations that recorders of torch see. Each call and its wait are therefore one torch operation here.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from thalweg.backends.tensors import join_parts, sum_parts
from thalweg.errors import DeviceError, PeerError
from thalweg.hal.comm import Communicator
from thalweg.hal.platform import MEETING, RENDEZVOUS, Place

GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
SCATTER: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Collectives by their newer names where torch has those."""
ORDERED = frozenset({"gloo"})
"""Backends with sums computed here, from gathered values."""
LOOK_SECONDS = 0.005
UNCAPTURED = frozenset({"xccl"})
"""Backends with calls that no graph can hold."""


@dataclass(frozen=True, slots=True)
class _Calls:
    """Of (output, input), both flat."""

    gather: Callable[[Tensor, Tensor], Any]
    exchange: Callable[[Tensor, Tensor], Any]


@functools.cache
def _synchronous() -> _Calls:
    """The calls on tensors of the host as torch operations that end with the exchange."""
    library: Any = torch.library.Library("thalweg_comm", "DEF")  # type: ignore[no-untyped-call]
    calls: list[Any] = []
    for name, call in (("gather", GATHER), ("exchange", dist.all_to_all_single)):
        library.define(f"{name}(Tensor(a!) out, Tensor x) -> ()")
        library.impl(name, functools.partial(_finish, call), "CPU")
        calls.append(getattr(torch.ops.thalweg_comm, name).default)
    _KEPT.append(library)
    return _Calls(*calls)


def _finish(call: Callable[[Tensor, Tensor], Any], out: Tensor, x: Tensor) -> None:
    call(out, x)


_KEPT: list[Any] = []
"""Operations end with the library that defined them."""


class TorchCommunicator(Communicator):
    """The ranks of one model. Opening it waits until all are there, at most `timeout` seconds."""

    def __init__(self, backend: str, place: Place, timeout: float = 300.0) -> None:
        where = place.environment.get(RENDEZVOUS)
        if not where:
            raise DeviceError(f"device: rank {place.rank} of {place.world} has no address where the ranks meet")
        if not dist.is_backend_available(backend):
            raise DeviceError(f"device: this torch has no {backend}, which {place.world} devices need to work together")
        try:
            dist.init_process_group(
                backend, **_meet(where, place, timedelta(seconds=timeout)), rank=place.rank, world_size=place.world,
                timeout=timedelta(seconds=timeout),
            )  # fmt: skip
        except (RuntimeError, ValueError) as e:
            raise DeviceError(f"device: rank {place.rank} of {place.world} could not join the others at {where}: {e}") from e
        self.size, self._rank = place.world, place.rank
        self.captures, self.ordered = backend not in UNCAPTURED, backend in ORDERED
        self._calls = _synchronous() if self.ordered else _Calls(GATHER, dist.all_to_all_single)

    def all_reduce(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        if self.ordered:
            return sum_parts(self._gather(x))
        with self._peers():
            dist.all_reduce(x)
        return x

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        return join_parts(self._gather(x), dim)

    def part(self, x: Tensor, dim: int = -1) -> Tensor:
        size = self.part_size(x.shape, dim)
        return x.narrow(dim, self._rank * size, size)

    def reduce_scatter(self, x: Tensor, dim: int = -1) -> Tensor:
        apart = self._divide(x, dim)
        if self.ordered:
            return sum_parts(self._exchange(apart))
        out = torch.empty_like(apart[0], memory_format=torch.contiguous_format)
        with self._peers():
            SCATTER(out.view(-1), apart.view(-1))
        return out

    def all_to_all(self, x: Tensor, dim: int = 0) -> Tensor:
        return join_parts(self._exchange(self._divide(x, dim)), dim)

    def abort(self) -> None:
        group = dist.group.WORLD
        if group is not None:
            group.abort()

    def close(self) -> None:
        dist.destroy_process_group()

    def _gather(self, x: Tensor) -> Tensor:
        """Every rank's x: [size, *x.shape]."""
        parts = x.new_empty(self.size * x.numel())
        if x.numel():
            with self._peers():
                self._calls.gather(parts, x.contiguous().view(-1))
        return parts.view(self.size, *x.shape)

    def _exchange(self, apart: Tensor) -> Tensor:
        """[size, ...], part r for rank r -> every rank's part for this one."""
        got = torch.empty_like(apart)
        if apart.numel():
            with self._peers():
                self._calls.exchange(got.view(-1), apart.view(-1))
        return got

    def _divide(self, x: Tensor, dim: int) -> Tensor:
        size = self.part_size(x.shape, dim)
        return torch.stack([x.narrow(dim, r * size, size) for r in range(self.size)])

    @contextlib.contextmanager
    def _peers(self) -> Iterator[None]:
        """torch names only the address of a lost peer."""
        try:
            yield
        except RuntimeError as e:
            raise PeerError(f"an exchange of rank {self._rank} of {self.size} with the others failed: {e}") from e


def _open_store(where: str, place: Place, timeout: timedelta) -> Any:
    """The store that rank 0 listens at, once every rank is there. Waits in steps: torch's waiting would go on where a rank has
    ended meanwhile."""
    host, _, port = where.removeprefix("tcp://").rpartition(":")
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host, int(port), place.world, place.rank == 0, timeout, wait_for_workers=False
    )
    store.set(f"rank {place.rank}", "")
    meeting, until = place.environment.get(MEETING), time.monotonic() + timeout.total_seconds()
    while not store.check([f"rank {r}" for r in range(place.world)]):
        if meeting is not None and not Path(meeting).exists():
            raise RuntimeError("another one has ended")
        if time.monotonic() > until:
            raise RuntimeError(f"they did not come within {timeout.total_seconds():g} s")
        time.sleep(LOOK_SECONDS)
    return store


def _meet(where: str, place: Place, timeout: timedelta) -> dict[str, Any]:
    """Arguments of torch for the ranks' meeting place. Of a folder it wants a file. At an address rank 0 listens, which torch
    would leave to torchrun wherever that has started the process."""
    if where.startswith("tcp://"):
        return {"store": _open_store(where, place, timeout)}
    path = Path(where.removeprefix("file://"))
    return {"init_method": f"file://{path / 'torch'}" if path.is_dir() else where}
