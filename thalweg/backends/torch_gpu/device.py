"""The device of every torch accelerator: memory, arrays in and out, executables. One class; the `Runtime` is the vendor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.backends.eager import to_torch
from thalweg.backends.torch_gpu.executable import GpuExecutable, Lane
from thalweg.backends.torch_gpu.library import Parts
from thalweg.backends.torch_gpu.runtime import Runtime
from thalweg.backends.torch_gpu.staging import SMALLEST, Inbox, Outbox, Tables, Uploader
from thalweg.hal.comm import Communicator, Solo
from thalweg.hal.kv import KVLayout
from thalweg.hal.platform import Device, DeviceInfo, Memory
from thalweg.hal.step import Features, Params, StateBox, Step, StepShape


class GpuDevice(Device):
    """graphs: capture what can be captured (uniform buckets); else every step runs as it is written."""

    keeps_tables = True

    def __init__(
        self, info: DeviceInfo, runtime: Runtime, parts: Parts, *, graphs: bool = True, comm: Communicator | None = None
    ) -> None:
        self.info, self.kernels, self.attention = info, parts.kernels, parts.attention
        self.comm = comm or Solo()
        self._runtime, self._graphs = runtime, graphs
        self._uploader = Uploader(runtime)
        buffer = torch.empty(SMALLEST, dtype=torch.uint8, device=runtime.device)
        self._lane = Lane(runtime, Inbox(runtime), Outbox(runtime), buffer, Tables(runtime))

    def memory(self) -> Memory:
        return Memory(*self._runtime.memory())

    def used(self) -> int:
        return self._runtime.reserved()

    def put(self, t: Any) -> Tensor:
        """A copy; the source may change afterwards."""
        array: Tensor = to_torch(t)
        if array.device.type != "cpu":
            return array
        with torch.inference_mode():
            placed = self._uploader.put(array)
        self._runtime.join()
        return placed

    def normal(self, shape: tuple[int, ...], dtype: str, *, std: float, seed: int) -> Tensor:
        generator = torch.Generator(self._runtime.device).manual_seed(seed)
        out = torch.empty(shape, dtype=getattr(torch, dtype), device=self._runtime.device)
        out.normal_(0, std, generator=generator)
        return out

    def alloc_kv(self, layout: KVLayout, blocks: int) -> Tensor:
        return self.alloc((blocks, *layout.shape), layout.dtype)

    def alloc(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        return torch.zeros(shape, dtype=getattr(torch, dtype), device=self._runtime.device)

    def compile(
        self, step: Step, params: Params, state: StateBox, shape: StepShape | None, features: Features | None
    ) -> GpuExecutable:
        """Uniform buckets are captured, on the second call with a layout; the first one compiles kernels. Other shapes run
        eagerly: there the host is ahead of the device anyway."""
        self._uploader.close()
        capture = self._graphs and shape is not None and shape.uniform
        return GpuExecutable(self._lane, step, params, state, shape, features, capture)

    def copy_blocks(self, kv: Tensor, source: np.ndarray, target: np.ndarray) -> Tensor:
        where, what = self._index(target), self._index(source)

        def work() -> None:
            kv[where] = kv[what]

        self._now(work)
        return kv

    def read_blocks(self, kv: Tensor, blocks: np.ndarray) -> bytes:
        got: list[Tensor] = []
        index = self._index(blocks)
        self._now(lambda: got.append(kv[index].contiguous().reshape(-1).view(torch.uint8).cpu()))
        return got[0].numpy().tobytes()

    def write_blocks(self, kv: Tensor, blocks: np.ndarray, data: bytes) -> Tensor:
        values = self.put(torch.frombuffer(bytearray(data), dtype=kv.dtype).reshape(len(blocks), *kv.shape[1:]))
        index = self._index(blocks)

        def work() -> None:
            kv[index] = values

        self._now(work)
        return kv

    def _index(self, blocks: np.ndarray) -> Tensor:
        return self.put(np.asarray(blocks, np.int64))

    def _now(self, work: Callable[[], None]) -> None:
        """After every step launched so far, and done when this returns."""

        def quietly() -> None:
            with torch.inference_mode():
                work()

        self._runtime.compute.run(quietly)
        self._runtime.compute.record().synchronize()

    def synchronize(self) -> None:
        self._runtime.synchronize()

    def close(self) -> None:
        """What the driver holds for this process goes with the process; what torch holds unused goes now."""
        self._runtime.synchronize()
        self._uploader.close()
        self._runtime.trim()
