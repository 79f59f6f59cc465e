"""Weights from files to the device: several threads read into pinned buffers, and a separate stream copies from them.

Threads touch only files and host memory. The thread that drives the device launches every copy, in order. There are as many
buffers as threads and two more, of PIECE bytes at most, whatever the size of the model.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from thalweg.backends.torch_gpu.runtime import Event, Runtime
from thalweg.backends.torch_gpu.staging import as_bytes, room
from thalweg.errors import DeviceError
from thalweg.hal.device import FileArray, FileBytes

logger = logging.getLogger(__name__)
PIECE = 16 << 20
"""Bytes per read."""
LEAST = 2
"""Buffers without which nothing is read while something is copied."""


@dataclass(frozen=True, slots=True)
class _ReadChunk:
    """Bytes of one part of one parameter. to: where they belong among the parameter's bytes."""

    owner: int
    part: FileBytes
    at: int
    to: int
    count: int


@dataclass(slots=True)
class _PendingRead:
    """A piece being read, or read."""

    piece: _ReadChunk
    buffer: Tensor
    done: Future[None]


class WeightStreamer:
    """threads: that read. Run once, by the thread that drives the device."""

    def __init__(self, runtime: Runtime, parameters: Sequence[FileArray], threads: int) -> None:
        self._runtime, self._parameters, self._threads = runtime, parameters, threads
        self._todo = deque(_pieces(parameters, PIECE))
        self._size = room(max((p.count for p in self._todo), default=1))
        self._most = threads + LEAST
        self._free: deque[tuple[Tensor, Event | None]] = deque()
        """Buffers, and the copy from each that may still run, oldest first."""
        self._made = 0
        self._reads: deque[_PendingRead] = deque()

    def run(self) -> Generator[Tensor]:
        """The parameters in order. Nothing is read before the first is asked for, nor after it is closed."""
        pool = ThreadPoolExecutor(self._threads, "weights")
        try:
            for number, parameter in enumerate(self._parameters):
                yield self._upload(pool, number, parameter)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            for _, copied in self._free:
                if copied is not None:
                    copied.synchronize()
            self._free.clear()
            self._reads.clear()

    def _upload(self, pool: ThreadPoolExecutor, number: int, parameter: FileArray) -> Tensor:
        """The parameter. Its last copies may still run: later work of the compute stream comes after them."""
        runtime = self._runtime
        with torch.inference_mode():
            target = torch.empty(parameter.shape, dtype=getattr(torch, parameter.dtype), device=runtime.device)
            bytes_of = as_bytes(target)
        runtime.uploads.wait(runtime.compute.record())  # earlier work with this memory is done
        while True:
            self._read_ahead(pool)
            if not self._reads or self._reads[0].piece.owner != number:
                break
            read = self._reads.popleft()
            read.done.result()  # raises the thread's error
            to, n = read.piece.to, read.piece.count
            runtime.uploads.run(functools.partial(_copy, bytes_of[to : to + n], read.buffer[:n]))
            self._free.append((read.buffer, runtime.uploads.record()))
        runtime.compute.wait(runtime.uploads.record())
        return target

    def _read_ahead(self, pool: ThreadPoolExecutor) -> None:
        """Give threads as many pieces as there are buffers. It waits for a copy only where nothing is being read."""
        while self._todo:
            buffer = self._buffer(wait=not self._reads)
            if buffer is None:
                return
            piece = self._todo.popleft()
            into = buffer[: piece.count].numpy()
            self._reads.append(_PendingRead(piece, buffer, pool.submit(piece.part.into, piece.at, into)))

    def _buffer(self, wait: bool) -> Tensor | None:
        if self._free and (self._free[0][1] is None or self._free[0][1].query()):
            return self._free.popleft()[0]
        if self._made < self._most:
            try:
                buffer = self._runtime.allocate_pinned(self._size)
            except RuntimeError as e:
                if self._made < LEAST:
                    raise DeviceError(
                        f"device: no {self._size} bytes of pinned host memory for loading weights: free some, allow more "
                        f"(ulimit -l), or read them without: --additional-config '{{\"readers\": 0}}' ({e})"
                    ) from e
                logger.warning("weights are read through %d pinned buffers, as there is no memory for more: %s", self._made, e)
                self._most = self._made
            else:
                self._made += 1
                return buffer
        if not self._free or not wait:
            return None
        buffer, copied = self._free.popleft()
        if copied is not None:
            copied.synchronize()
        return buffer


def _pieces(parameters: Sequence[FileArray], most: int) -> Iterator[_ReadChunk]:
    for owner, parameter in enumerate(parameters):
        to = 0
        for part in parameter.parts:
            for at in range(0, part.count, most):
                count = min(most, part.count - at)
                yield _ReadChunk(owner, part, at, to + at, count)
            to += part.count


def _copy(target: Tensor, source: Tensor) -> None:
    with torch.inference_mode():
        target.copy_(source, non_blocking=True)
