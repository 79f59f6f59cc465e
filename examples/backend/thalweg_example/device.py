"""The example device: one thread that does what it is told in order. Nothing of the host's memory is shared with it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.device import Device, DeviceInfo, Memory
from thalweg.hal.kv import KVLayout
from thalweg.hal.step import Features, Params, StateBox, Step, StepBatch, StepResult, StepShape
from thalweg_example.attention import HeadMajorAttention
from thalweg_example.kernels import KERNELS


class Launched:
    """A Pending."""

    def __init__(self, done: Future[StepResult]) -> None:
        self._done: Future[StepResult] | None = done

    def ready(self) -> bool:
        return self._done is None or self._done.done()

    def result(self) -> StepResult:
        if self._done is None:
            raise RuntimeError("Pending.result() was called twice")
        done, self._done = self._done, None
        return done.result()


class ExampleDevice(Device):
    moves_blocks = True

    def __init__(self, info: DeviceInfo, kernels: bool) -> None:
        self.info = info
        self.kernels = KERNELS if kernels else ()
        self.attention = (HeadMajorAttention(),)
        self._thread = ThreadPoolExecutor(1, "example device")  # one thread: work takes effect in the order it was given
        self._held = 0

    def _run(self, work: Callable[[], Any]) -> Future[Any]:
        """An error belongs to the work that raised it: whoever reads its result is told."""

        def quietly() -> Any:
            with torch.inference_mode():
                return work()

        return self._thread.submit(quietly)

    def memory(self) -> Memory:
        return Memory(self.info.memory_bytes, max(1, self.info.memory_bytes - self._held))

    def put(self, t: Any) -> Tensor:
        """A copy, also of what is here already, as that cannot be told from the host's: both are tensors of torch's cpu."""
        return self._kept(to_device(t))

    def alloc_kv(self, layout: KVLayout, blocks: int) -> Tensor:
        return self.alloc((blocks, *layout.shape), layout.dtype)

    def alloc(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        return self._kept(torch.zeros(shape, dtype=getattr(torch, dtype)))

    def _kept(self, t: Tensor) -> Tensor:
        self._held += t.nbytes
        return t

    def compile(
        self, step: Step, params: Params, state: StateBox, shape: StepShape | None, features: Features | None
    ) -> Callable[[StepBatch], Launched]:
        """Nothing to compile: the thread runs the step as it is written, for any shape and features."""

        def work(batch: StepBatch) -> StepResult:
            state.value, result = step(params, state.value, batch)
            host: StepResult = to_host(result)
            return host

        def launch(batch: StepBatch) -> Launched:
            mine = batch.map(to_device)  # now, as the host may fill its arrays anew once this returns
            return Launched(self._run(lambda: work(mine)))

        return launch

    def copy_blocks(self, kv: Tensor, source: np.ndarray, target: np.ndarray) -> Tensor:
        self._run(lambda: kv.index_copy_(0, _rows(target), kv[_rows(source)])).result()
        return kv

    def read_blocks(self, kv: Tensor, blocks: np.ndarray) -> bytes:
        data: bytes = self._run(lambda: kv[_rows(blocks)].view(torch.uint8).numpy().tobytes()).result()
        return data

    def write_blocks(self, kv: Tensor, blocks: np.ndarray, data: bytes) -> Tensor:
        values = torch.frombuffer(bytearray(data), dtype=kv.dtype).reshape(len(blocks), *kv.shape[1:])
        self._run(lambda: kv.index_copy_(0, _rows(blocks), values)).result()
        return kv

    def synchronize(self) -> None:
        self._run(lambda: None).result()

    def close(self) -> None:
        self._thread.shutdown()


def to_device(a: Any) -> Tensor:
    """A copy, as a tensor. Words of a mask are u32 on the host, which ops take as i32."""
    if isinstance(a, Tensor):
        return a.clone(memory_format=torch.contiguous_format)
    a = np.array(a)
    return torch.from_numpy(a.view(np.int32) if a.dtype == np.uint32 else a)


def to_host(x: Any) -> Any:
    """A step's result with copies of its tensors as numpy arrays, in whatever dataclass or mapping they lie."""
    if isinstance(x, Tensor):
        return np.array(x.numpy())
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{f.name: to_host(getattr(x, f.name)) for f in fields(x)})
    return {k: to_host(v) for k, v in x.items()} if isinstance(x, dict) else x


def _rows(blocks: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(blocks, np.int64))
