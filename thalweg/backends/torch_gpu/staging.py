"""Bytes between host and device: a step's batch in as one copy, its result out as one copy, weights in several.

Host buffers are pinned and used again. Each is free once the device has read it, which an event says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.backends.torch_gpu.runtime import Event, Runtime
from thalweg.hal.step import Layout, StepBatch, TableRows, pack

SMALLEST = 4096
"""Bytes of the first buffer. Others double."""
PIECE = 32 << 20
"""Bytes of each of the two buffers that large arrays pass through."""
NUMPY: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64), torch.float16: np.dtype(np.float16),
    torch.int32: np.dtype(np.int32), torch.int64: np.dtype(np.int64), torch.int16: np.dtype(np.int16),
    torch.uint8: np.dtype(np.uint8), torch.int8: np.dtype(np.int8), torch.bool: np.dtype(np.bool_),
}  # fmt: skip
TORCH = {"<f4": torch.float32, "<i4": torch.int32, "<u4": torch.int32, "<i8": torch.int64, "|b1": torch.bool,
         "<f2": torch.float16, "|u1": torch.uint8, "|i1": torch.int8, "<i2": torch.int16, "<f8": torch.float64}  # fmt: skip
"""numpy's names. Words of u32 travel as i32."""


def room(n: int) -> int:
    """The buffer size for n bytes."""
    return max(SMALLEST, 1 << (n - 1).bit_length())


class Ring:
    """Pinned buffers that leave in sequence, in order with the compute stream. With `count` one above the steps in flight it
    never waits."""

    def __init__(self, runtime: Runtime, count: int = 4) -> None:
        self._runtime = runtime
        self._buffers: list[tuple[Tensor, Event | None]] = [(runtime.allocate_pinned(SMALLEST), None) for _ in range(count)]
        self._next = 0

    def send(self, n: int, fill: Callable[[np.ndarray], None], work: Callable[[Tensor], None]) -> None:
        """fill: writes n bytes, now. work: launches their reader."""
        i, self._next = self._next, (self._next + 1) % len(self._buffers)
        buffer, left = self._buffers[i]
        if left is not None:
            left.synchronize()
        if buffer.numel() < n:
            buffer = self._runtime.allocate_pinned(room(n))
        fill(buffer.numpy())
        self._runtime.compute.run(lambda: work(buffer[:n]))
        self._buffers[i] = (buffer, self._runtime.compute.record())


class Inbox:
    """Host buffers that batches leave from."""

    def __init__(self, runtime: Runtime) -> None:
        self._ring = Ring(runtime)

    def send(self, batch: StepBatch, layout: Layout, n: int, target: Callable[[], Tensor]) -> None:
        """Copy the batch to the device buffer that `target` gives when the copy runs, in order with the compute stream."""
        self._ring.send(n, lambda buffer: pack(batch, layout, buffer), lambda buffer: _copy(target()[:n], buffer))


class DeviceBlockTables:
    """Block tables that stay on the device, one of each KV group. Changes are sent before the step that reads them, in order
    with the compute stream. A step launched earlier thus reads the former values."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._ring = runtime, Ring(runtime)
        self._held: dict[int, Tensor] = {}

    def send(self, batch: StepBatch) -> None:
        """Changes since the batch before. Nothing for a batch with copies of its tables."""
        for g, rows in enumerate(batch.block_tables):
            if not isinstance(rows, TableRows):
                continue
            if g not in self._held:
                self._held[g] = torch.zeros(rows.size, dtype=torch.int32, device=self._runtime.device)
            if len(rows.places):
                self._change(self._held[g].view(-1), rows)

    def _change(self, table: Tensor, rows: TableRows) -> None:
        n = len(rows.places)

        def fill(buffer: np.ndarray) -> None:
            buffer[: 8 * n].view(np.int64)[:] = rows.places
            buffer[8 * n : 12 * n].view(np.int32)[:] = rows.values

        def work(buffer: Tensor) -> None:
            here = torch.empty(12 * n, dtype=torch.uint8, device=self._runtime.device)
            _copy(here, buffer)
            with torch.inference_mode():
                table.index_copy_(0, here[: 8 * n].view(torch.int64), here[8 * n :].view(torch.int32))

        self._ring.send(12 * n, fill, work)

    def gather_tables(self, batch: StepBatch) -> StepBatch:
        """The batch on the device, with names of rows replaced by copies of the rows, as kernels need them."""
        tables = tuple(
            self._held[g][:, : t.blocks].index_select(0, batch.slots) if isinstance(t, TableRows) else t
            for g, t in enumerate(batch.block_tables)
        )
        return replace(batch, block_tables=tables)


def _copy(target: Tensor, source: Tensor) -> None:
    with torch.inference_mode():
        target.copy_(source, non_blocking=True)


def views(buffer: Tensor, layout: Layout) -> dict[str, Tensor]:
    """The arrays of a layout, as tensors over a device buffer."""
    out = {}
    for name, kind, shape, at in layout:
        dtype = TORCH[kind]
        n = int(np.prod(shape)) * dtype.itemsize
        out[name] = buffer[at : at + n].view(dtype).view(shape)
    return out


def as_bytes(t: Tensor) -> Tensor:
    """A contiguous tensor's memory as u8[bytes]. Empty for an empty one: no view accepts its strides."""
    return t.reshape(-1).view(torch.uint8) if t.numel() else t.new_empty(0, dtype=torch.uint8)


Manifest = tuple[Any, list[tuple[np.dtype[Any], tuple[int, ...]]]]
"""A result with each tensor replaced by a number, and the dtype and shape of each."""


def flatten(result: Any) -> tuple[Tensor, Manifest]:
    """A step's result as one u8 tensor, and the facts needed to read it."""
    leaves: list[Tensor] = []
    shell = _number(result, leaves)
    kinds = [(NUMPY[t.dtype], tuple(t.shape)) for t in leaves]
    flat = [as_bytes(t.contiguous()) for t in leaves]
    return torch.cat(flat), (shell, kinds)


def read(buffer: np.ndarray, manifest: Manifest) -> Any:
    """The result again, its arrays copied out of the host buffer."""
    shell, kinds = manifest
    arrays, at = [], 0
    for dtype, shape in kinds:
        n = int(np.prod(shape)) * dtype.itemsize
        arrays.append(np.frombuffer(buffer[at : at + n].tobytes(), dtype).reshape(shape))
        at += n
    return _fill(shell, arrays)


class _Leaf(int):
    """The number of a tensor in a shell."""


def _number(x: Any, leaves: list[Tensor]) -> Any:
    if isinstance(x, Tensor):
        leaves.append(x)
        return _Leaf(len(leaves) - 1)
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{f.name: _number(getattr(x, f.name), leaves) for f in fields(x)})
    if isinstance(x, dict):
        return {k: _number(v, leaves) for k, v in x.items()}
    return x


def _fill(x: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(x, _Leaf):
        return arrays[x]
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{f.name: _fill(getattr(x, f.name), arrays) for f in fields(x)})
    if isinstance(x, dict):
        return {k: _fill(v, arrays) for k, v in x.items()}
    return x


class Outbox:
    """Host buffers that results arrive in. A launched step borrows one and returns it when its result has been read."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._free: list[Tensor] = []

    def take(self, n: int) -> Tensor:
        buffer = self._free.pop() if self._free else self._runtime.allocate_pinned(room(n))
        return buffer if buffer.numel() >= n else self._runtime.allocate_pinned(room(n))

    def give(self, buffer: Tensor) -> None:
        self._free.append(buffer)


class GpuExport:
    """An array on its way to the host, while later steps run. The device's copy is kept until it has arrived."""

    def __init__(self, runtime: Runtime, gathered: list[Tensor], shape: tuple[int, int]) -> None:
        """gathered: filled with a u8 tensor of this shape by work that the compute stream was given."""
        self._gathered, self._shape = gathered, shape
        self._host = host = runtime.allocate_pinned(shape[0] * shape[1])
        runtime.copies.wait(runtime.compute.record())
        runtime.copies.run(lambda: _copy(host, gathered[0].view(-1)))
        self._arrived = runtime.copies.record()

    def ready(self) -> bool:
        return self._arrived.query()

    def result(self) -> np.ndarray:
        """u8 of the shape, in separate pinned memory."""
        self._arrived.synchronize()
        self._gathered.clear()
        return self._host.numpy().reshape(self._shape)


class Uploader:
    """Arrays of any size to the device, through two pinned buffers: one fills while the other is copied."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._buffers: list[tuple[Tensor, Event | None]] = []

    def put(self, source: Tensor) -> Tensor:
        """source: on the host. The copy is in order with the compute stream. The source may change when this returns."""
        target = torch.empty(source.shape, dtype=source.dtype, device=self._runtime.device)
        data, into = as_bytes(source.contiguous()), as_bytes(target)
        for at in range(0, data.numel(), PIECE):
            self._piece(into[at : at + PIECE], data[at : at + PIECE])
        return target

    def _piece(self, target: Tensor, data: Tensor) -> None:
        n = data.numel()
        if len(self._buffers) < 2:
            buffer, left = self._runtime.allocate_pinned(room(n)), None
        else:
            buffer, left = self._buffers.pop(0)
        if left is not None:
            left.synchronize()
        if buffer.numel() < n:
            buffer = self._runtime.allocate_pinned(room(n))
        buffer[:n].copy_(data)
        self._runtime.compute.run(lambda: _copy(target, buffer[:n]))
        self._buffers.append((buffer, self._runtime.compute.record()))

    def close(self) -> None:
        """Weights are in place: the buffers are not needed until the next one comes."""
        for _, left in self._buffers:
            if left is not None:
                left.synchronize()
        self._buffers = []
