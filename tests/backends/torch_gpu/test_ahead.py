"""Kernels compiled before the steps that launch them: for an architecture that is not here, with a driver that runs nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl
from test_device_on_host import INFO, SHAPE, _batch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from thalweg.backends.torch_gpu import ahead
from thalweg.backends.torch_gpu.device import GpuDevice
from thalweg.backends.torch_gpu.host import HostRuntime
from thalweg.backends.torch_gpu.library import KernelSet
from thalweg.hal.step import Features, StateBox, StepBatch, StepResult


class Absent(DriverBase):
    """An sm_90 whose kernels do nothing."""

    def __init__(self) -> None:
        self.utils, self.launches = self, 0

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[Any, ...]:
        return object(), object(), 0, 0, 1024

    def launcher_cls(self, src: Any, metadata: Any) -> Any:
        def launch(*args: Any) -> None:
            self.launches += 1

        return launch


@triton.jit
def _one(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) + 1)


@triton.jit
def _two(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) * 3)


def _step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
    out = torch.zeros_like(batch.tokens)
    for kernel in (_one, _two):
        kernel[(1,)](batch.tokens + params["weight"], out, N=4)
    return state, StepResult(out[:, None], batch.query)


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Absent]:
    if not isinstance(_one, JITFunction):
        pytest.skip("Triton interprets here")
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(ahead.os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    made = Absent()
    monkeypatch.setattr(driver, "_active", made)
    yield made
    for kernel in (_one, _two):
        kernel.device_caches.clear()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """(kernel, on the thread that serves) of every compilation."""
    done: list[tuple[str, bool]] = []
    compiles = triton.compiler.compile
    main = threading.get_ident()

    def note(src: Any, **more: Any) -> Any:
        done.append((src.fn.__name__, threading.get_ident() == main))
        return compiles(src, **more)

    monkeypatch.setattr(triton.compiler, "compile", note)  # a kernel takes it from there when it first meets a device
    return done


@pytest.mark.slow
def test_kernels_are_compiled_on_other_threads_before_the_step_runs(absent: Absent, compiled: list[tuple[str, bool]]) -> None:
    device = GpuDevice(INFO, HostRuntime(late=False), KernelSet(), prepare="kernels")
    run = device.compile(_step, {"weight": torch.ones(4, dtype=torch.int32)}, StateBox({}), None, None)
    device.rehearse([lambda: (run, _batch(4, 0))])
    assert sorted(compiled) == [("_one", False), ("_two", False)]
    assert absent.launches == 2  # of the step itself: what is compiled ahead launches nothing
    run(_batch(4, 0)).result()
    assert len(compiled) == 2


@pytest.mark.slow
def test_a_kernel_of_many_layers_is_compiled_once_and_one_that_does_not_compile_says_so_when_it_runs(
    absent: Absent, compiled: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def layers(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        for _ in range(5):
            state, result = _step(params, state, batch)
        return state, result

    note = triton.compiler.compile

    def fails(src: Any, **more: Any) -> Any:
        made = note(src, **more)
        if src.fn.__name__ == "_two":
            raise RuntimeError("too many registers")
        return made

    monkeypatch.setattr(triton.compiler, "compile", fails)
    device = GpuDevice(INFO, HostRuntime(late=False), KernelSet(), prepare="kernels")
    run = device.compile(layers, {"weight": torch.ones(4, dtype=torch.int32)}, StateBox({}), None, None)
    with pytest.raises(RuntimeError, match="too many registers"):
        device.rehearse([lambda: (run, _batch(4, 0))])
    assert compiled.count(("_one", False)) == compiled.count(("_two", False)) == 1
    assert len(compiled) <= 3  # some versions of Triton try again
    assert triton.knobs.runtime.jit_cache_hook is None


@pytest.mark.slow
def test_without_threads_to_compile_on_the_step_compiles_them_itself(
    absent: Absent, compiled: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_triton", lambda: (None, None))
    device = GpuDevice(INFO, HostRuntime(late=False), KernelSet(), prepare="kernels")
    run = device.compile(_step, {"weight": torch.ones(4, dtype=torch.int32)}, StateBox({}), SHAPE, Features())
    device.rehearse([lambda: (run, _batch(4, 0))])
    assert compiled == [("_one", True), ("_two", True)]


def test_a_step_that_wants_values_is_rehearsed_all_the_same(absent: Absent, compiled: list[tuple[str, bool]]) -> None:
    def looks(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        assert int(batch.tokens.sum()) >= 0
        return _step(params, state, batch)

    device = GpuDevice(INFO, HostRuntime(late=False), KernelSet(), prepare="kernels")
    run = device.compile(looks, {"weight": torch.ones(4, dtype=torch.int32)}, StateBox({}), None, None)
    device.rehearse([lambda: (run, _batch(4, 0))])
    assert compiled == [("_one", True), ("_two", True)]
    assert JITFunction.run.__name__ == "run"  # what launches is what it was
