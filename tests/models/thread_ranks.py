"""Ranks as threads of this process: a communicator, and what runs each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from thalweg.hal.comm import Communicator


class Ring(Communicator):
    """Everyone puts its part in, everyone takes the same result. The name of a rank's thread is its number."""

    def __init__(self, size: int) -> None:
        self.size, self._barrier, self._parts = size, threading.Barrier(size, timeout=120), dict[int, torch.Tensor]()

    def _meet(self, x: torch.Tensor) -> list[torch.Tensor]:
        self._parts[_rank()] = x
        self._barrier.wait()
        parts = [self._parts[r] for r in range(self.size)]
        self._barrier.wait()
        return parts

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._meet(x)).sum(0)

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return torch.cat(self._meet(x), dim)

    def part(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return x.chunk(self.size, dim)[_rank()]

    def abort(self) -> None:
        self._barrier.abort()


def _rank() -> int:
    return int(threading.current_thread().name)


def run_ranks(ring: Ring, work: Callable[[int], Any]) -> list[Any]:
    """What `work` returns on each rank. Raises what it raises on one."""
    results: list[Any] = [None] * ring.size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except BaseException as e:
            errors.append(e)
            ring.abort()

    threads = [threading.Thread(target=run, args=(r,), name=str(r)) for r in range(ring.size)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return results
