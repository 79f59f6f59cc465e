"""The device of every torch accelerator: memory, arrays in and out, executables. One class. The `Runtime` is the
vendor."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.backends.eager import to_torch
from thalweg.backends.torch_gpu.ahead import compiling, without_memory
from thalweg.backends.torch_gpu.arch import decode_shapes
from thalweg.backends.torch_gpu.arrival import WeightStreamer
from thalweg.backends.torch_gpu.executable import GpuContext, GpuExecutable, bucket_logprobs
from thalweg.backends.torch_gpu.library import KernelSet
from thalweg.backends.torch_gpu.runtime import Runtime
from thalweg.backends.torch_gpu.staging import SMALLEST, DeviceBlockTables, GpuExport, Inbox, Outbox, Uploader
from thalweg.errors import DeviceError
from thalweg.hal.comm import Communicator, Solo
from thalweg.hal.device import Device, DeviceInfo, FileArray, Memory, Rehearsal, row_bytes
from thalweg.hal.kv import KVLayout
from thalweg.hal.step import Features, Params, StateBox, Step, StepShape

logger = logging.getLogger(__name__)


class GpuDevice(Device):
    """graphs: capture steps that can be captured (uniform buckets, of ranks with exchanges that can be). Otherwise every step
    runs as it is written. prepare: before the first request compile kernels and capture graphs ("graphs"), compile only
    ("kernels"), or neither ("none"). readers: threads that read weights from files; 0: each is read by the caller and `put`."""

    keeps_tables = rounds = moves_blocks = True

    def __init__(
        self, info: DeviceInfo, runtime: Runtime, parts: KernelSet, *, graphs: bool = True, prepare: str = "none",
        comm: Communicator | None = None, readers: int = 0,
    ) -> None:  # fmt: skip
        self.comm = comm or Solo()
        graphs = graphs and self.comm.captures
        self.warms, self._ahead = prepare != "none", graphs and prepare == "graphs"
        self.info, self.kernels, self.attention = info, parts.kernels, parts.attention
        self._runtime, self._graphs, self._readers = runtime, graphs, readers
        self._uploader = Uploader(runtime)
        eager, graph = (torch.empty(SMALLEST, dtype=torch.uint8, device=runtime.device) for _ in range(2))
        self._lane = GpuContext(runtime, Inbox(runtime), Outbox(runtime), eager, graph, DeviceBlockTables(runtime))

    def memory(self) -> Memory:
        return Memory(*self._runtime.memory())

    def enter(self) -> None:
        """torch keeps the current device and stream by thread."""
        self._runtime.join()

    def memory_used(self) -> int:
        return self._runtime.memory_reserved()

    def put(self, t: Any) -> Tensor:
        """A copy. The source may change afterwards."""
        array: Tensor = to_torch(t)
        if array.device.type != "cpu":
            return array
        with torch.inference_mode():
            placed = self._uploader.put(array)
        self._runtime.join()
        return placed

    def arrive(self, parameters: Sequence[FileArray]) -> Generator[Tensor] | None:
        return self._arrive(parameters) if self._readers and parameters else None

    def _arrive(self, parameters: Sequence[FileArray]) -> Generator[Tensor]:
        with contextlib.closing(WeightStreamer(self._runtime, parameters, self._readers).run()) as arrival:
            for array in arrival:
                self._runtime.join()
                yield array

    def normal(self, shape: tuple[int, ...], dtype: str, *, std: float, seed: int) -> Tensor:
        generator = torch.Generator(self._runtime.device).manual_seed(seed)
        out = torch.empty(shape, dtype=getattr(torch, dtype), device=self._runtime.device)
        out.normal_(0, std, generator=generator)
        return out

    def alloc_kv(self, layout: KVLayout, blocks: int) -> Tensor:
        return self.alloc((blocks, *layout.shape), layout.dtype)

    def alloc(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        return torch.zeros(shape, dtype=getattr(torch, dtype), device=self._runtime.device)

    def write(self, array: Tensor, at: int, values: Any) -> Tensor:
        """In the array's own memory, which graphs read."""
        placed = self.put(values)

        def work() -> None:
            with torch.inference_mode():
                array[at].copy_(placed)

        self._runtime.compute.run(work)
        return array

    def compile(
        self, step: Step, params: Params, state: StateBox, shape: StepShape | None, features: Features | None
    ) -> GpuExecutable:
        """Buckets are captured, on the second call with a layout. The first one compiles kernels. Steps that no bucket
        holds run eagerly: there the host is ahead of the device anyway."""
        self._uploader.close()
        capture = self._graphs and shape is not None
        return GpuExecutable(self._lane, step, params, state, shape, features, capture)

    def widen(self, features: Features) -> Features:
        """Greedy rows, and rows without truncation, pass through these kernels next to untouched: no separate graphs."""
        return bucket_logprobs(replace(features, random=True, truncate=True))

    def warmup_buckets(self, buckets: Sequence[StepShape]) -> Sequence[StepShape]:
        """Largest first: temporaries of a smaller graph then lie in memory that a larger one has. Steps with prompts or drafts
        are captured at first use: they have many sizes, and a server meets few."""
        result = decode_shapes(buckets) if self._ahead else []
        return sorted(result, key=lambda s: (s.tokens, s.blocks), reverse=True)

    def rehearse(self, steps: Sequence[Rehearsal]) -> None:
        """Steps of requests that ask for nothing special run twice, as the second call is captured. For others kernels are
        compiled, and graphs are captured while serving, where such requests come in numbers."""
        plain = self.widen(Features())
        self._compile_ahead(steps, plain)
        try:
            for make in steps:
                run, batch = make()
                run(batch).result()
                if self._ahead and isinstance(run, GpuExecutable) and run.captures(plain):
                    run(batch).result()
        except torch.OutOfMemoryError as e:
            raise DeviceError(
                f"device: {self.info.kind}: memory ran out in a step of the largest size this engine may be given, before any "
                f"request: lower gpu_memory_utilization, max_num_batched_tokens or max_num_seqs ({e})"
            ) from e

    def _compile_ahead(self, steps: Sequence[Rehearsal], plain: Features) -> None:
        """The kernels of these steps, side by side. Of the plain buckets' the first's: the others launch the same."""
        result: dict[int, Any] = {}

        def nowhere(x: Any) -> Any:
            if id(x) not in result:
                result[id(x)] = without_memory(x)
            return result[id(x)]

        buckets = 0
        with compiling() as can:
            for make in steps if can else ():
                run, batch = make()
                if not isinstance(run, GpuExecutable):
                    continue
                if run.shape is not None and run.shape.uniform and run.captures(plain):
                    buckets += 1
                    if buckets > 1:
                        continue
                try:
                    run.launch_nowhere(batch, nowhere)
                except Exception as e:  # something in it wants values, or a device: it says so again if it runs no better
                    logger.debug("kernels of %s are not compiled ahead: %s", run.shape or "steps of any shape", e)

    def export(self, caches: Sequence[Tensor], blocks: np.ndarray) -> GpuExport:
        """Gathered between two steps, and copied to the host while later ones run."""
        index, gathered = self._index(blocks), list[Tensor]()

        def gather() -> None:
            with torch.inference_mode():
                gathered.append(torch.cat([kv.view(torch.uint8)[index].flatten(1) for kv in caches], dim=1))

        self._runtime.compute.run(gather)
        return GpuExport(self._runtime, gathered, (len(blocks), sum(map(row_bytes, caches))))

    def import_(self, caches: Sequence[Tensor], blocks: np.ndarray, rows: np.ndarray) -> list[Tensor]:
        index, data = self._index(blocks), self.put(rows)

        def scatter() -> None:
            at = 0
            with torch.inference_mode():
                for kv in caches:
                    n, target = row_bytes(kv), kv.view(torch.uint8)
                    target[index] = data[:, at : at + n].reshape(len(blocks), *target.shape[1:])
                    at += n

        self._runtime.compute.run(scatter)
        return list(caches)

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
        """Memory of the driver for this process ends with the process. Memory that torch holds unused goes now."""
        self._runtime.synchronize()
        self._uploader.close()
        self._runtime.trim()
