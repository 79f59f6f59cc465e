"""Shared code of platforms that run torch eagerly on the host: arrays in and out, and the executable.

The step runs on the calling thread before the call returns. A `Pending` is thus always ready, and calls take effect in order by
construction. Knows no kernel and no attention layout.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.backends.host import host_memory, process_memory
from thalweg.hal.attention import AttentionBackend
from thalweg.hal.device import Background, CompletedExport, Device, DeviceInfo, Executable, Memory, row_bytes
from thalweg.hal.kv import KVLayout
from thalweg.hal.op import Kernel
from thalweg.hal.step import Features, Params, StateBox, Step, StepBatch, StepResult, StepShape

NICE = 5
"""Of threads in the background: a core that they share with a step's gives that three quarters."""


def to_torch(a: Any) -> Tensor:
    """A host array as a tensor over the same memory where it is writable and contiguous, else a copy. u32 words become i32."""
    if isinstance(a, Tensor):
        return a
    if not (a.flags.writeable and a.flags.c_contiguous):
        a = np.array(a)
    return torch.from_numpy(a.view(np.int32) if a.dtype == np.uint32 else a)


def to_numpy(x: Any) -> Any:
    """A step's result with every tensor as a numpy array, in whatever dataclass or mapping it lies."""
    if isinstance(x, Tensor):
        return x.numpy()
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{f.name: to_numpy(getattr(x, f.name)) for f in fields(x)})
    if isinstance(x, dict):
        return {k: to_numpy(v) for k, v in x.items()}
    return x


def copy_arrays(result: StepResult) -> StepResult:
    """A step's result of numpy arrays in new memory."""
    return StepResult(*[_copy_nested(getattr(result, name)) for name in _RESULT])


_RESULT = tuple(f.name for f in fields(StepResult))


def _copy_nested(x: Any) -> Any:
    if x is None or isinstance(x, np.ndarray):
        return x if x is None else x.copy()
    if isinstance(x, dict):
        return {k: _copy_nested(v) for k, v in x.items()}
    return replace(x, **{f.name: _copy_nested(getattr(x, f.name)) for f in fields(x)})


@dataclass(slots=True)
class CompletedStep:
    """A Pending for a step that has already run."""

    _result: StepResult | None
    _error: BaseException | None = None

    def ready(self) -> bool:
        return True

    def result(self) -> StepResult:
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise RuntimeError("Pending.result() was called twice")
        result, self._result = self._result, None
        return result


@dataclass(frozen=True, slots=True)
class EagerExecutable:
    """Runs the step as it is written. A step that raises leaves the state as it was before, unless it wrote in place."""

    step: Step
    params: Params
    state: StateBox

    def __call__(self, batch: StepBatch) -> CompletedStep:
        with torch.inference_mode():
            try:
                state, result = self.step(self.params, self.state.value, batch.map(to_torch))
                host = to_numpy(result)
            except Exception as e:
                return CompletedStep(None, e)
        self.state.value = state
        return CompletedStep(host)


class ThreadedStep:
    """A Pending for a step that runs on another thread."""

    def __init__(self, running: Future[CompletedStep]) -> None:
        self._running = running

    def ready(self) -> bool:
        return self._running.done()

    def result(self) -> StepResult:
        return self._running.result().result()


class StepThread:
    """A thread that runs steps in order. The system gives it a smaller share of a core than the threads that serve tokens."""

    def __init__(self, setup: Callable[[], None] = lambda: None) -> None:
        """setup: the first call of the thread, at its priority."""

        def begin() -> None:
            with contextlib.suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
            setup()

        self._pool = ThreadPoolExecutor(1, "background")
        self._pool.submit(begin).result()

    def compile(self, step: Step, params: Params, state: StateBox) -> Executable:
        run = EagerExecutable(step, params, state)
        return lambda batch: ThreadedStep(self._pool.submit(run, batch))

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class EagerDevice(Device):
    """Host memory, torch CPU operations, one thread that calls."""

    moves_blocks = True

    def __init__(self, info: DeviceInfo, kernels: Sequence[Kernel], attention: Sequence[AttentionBackend]) -> None:
        self.info, self.kernels, self.attention = info, tuple(kernels), tuple(attention)
        self._worker: StepThread | None = None

    def background(self) -> Background | None:
        self._worker = StepThread()
        return Background(self.kernels, self.attention, self._worker.compile)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        super().close()

    def memory(self) -> Memory:
        return Memory(*host_memory())

    def memory_used(self) -> int:
        return process_memory()

    def put(self, t: Any) -> Tensor:
        """Shares memory with t where it can: the caller does not write to it afterwards."""
        return to_torch(t).contiguous()

    def alloc_kv(self, layout: KVLayout, blocks: int) -> Tensor:
        return self.alloc((blocks, *layout.shape), layout.dtype)

    def alloc(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        return torch.zeros(shape, dtype=getattr(torch, dtype))

    def write(self, array: Tensor, at: int, values: Any) -> Tensor:
        with torch.inference_mode():
            array[at].copy_(to_torch(values))
        return array

    def compile(
        self, step: Step, params: Params, state: StateBox, shape: StepShape | None, features: Features | None
    ) -> Executable:
        return EagerExecutable(step, params, state)

    def export(self, caches: Sequence[Tensor], blocks: np.ndarray) -> CompletedExport:
        index = to_torch(blocks).long()
        with torch.inference_mode():
            parts = [kv.view(torch.uint8)[index].flatten(1) for kv in caches]
            return CompletedExport(torch.cat(parts, dim=1).numpy())

    def import_(self, caches: Sequence[Tensor], blocks: np.ndarray, rows: np.ndarray) -> list[Tensor]:
        index, data, at = to_torch(blocks).long(), to_torch(rows), 0
        with torch.inference_mode():
            for kv in caches:
                n = row_bytes(kv)
                got = kv.view(torch.uint8)
                got[index] = data[:, at : at + n].reshape(len(index), *got.shape[1:])
                at += n
        return list(caches)

    def copy_blocks(self, kv: Tensor, source: np.ndarray, target: np.ndarray) -> Tensor:
        with torch.inference_mode():
            kv[to_torch(target).long()] = kv[to_torch(source).long()]
        return kv

    def read_blocks(self, kv: Tensor, blocks: np.ndarray) -> bytes:
        with torch.inference_mode():
            return kv[to_torch(blocks).long()].view(torch.uint8).numpy().tobytes()

    def write_blocks(self, kv: Tensor, blocks: np.ndarray, data: bytes) -> Tensor:
        with torch.inference_mode():
            got = torch.frombuffer(bytearray(data), dtype=kv.dtype).reshape(len(blocks), *kv.shape[1:])
            kv[to_torch(blocks).long()] = got
        return kv
