"""`TorchRuntime`, which drives real GPUs, on a module that stands in for torch.cuda and torch.xpu: it computes on the host,
records graphs as the host's runtime does, and refuses what the real one refuses. What it cannot show is a real race."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from thalweg.backends.torch_gpu import runtime as runtime_module
from thalweg.backends.torch_gpu.device import GpuDevice
from thalweg.backends.torch_gpu.driver import TorchDriver
from thalweg.backends.torch_gpu.host import GraphRecorder
from thalweg.backends.torch_gpu.library import KernelSet
from thalweg.backends.torch_gpu.runtime import TorchRuntime
from thalweg.hal.device import DeviceInfo
from thalweg.hal.step import Features, SamplingArrays, StateBox, StepBatch, StepResult, StepShape

GRAPH = {"cuda": "CUDAGraph", "xpu": "XPUGraph"}
USED = ("Stream", "stream", "set_stream", "set_device", "mem_get_info", "memory_reserved", "empty_cache", "synchronize",
        "graph_pool_handle", "is_available", "device_count", "get_device_properties")  # fmt: skip


class Module:
    """torch.cuda, or torch.xpu, of one device with 8 GiB of which 3 are free. `log` tells what was called, in order.

    recording: pools that the allocator gives memory from, which a capture that cannot end leaves there (CUDAGraph.cpp,
    capture_end, before torch 2.13; later it is taken out before the error is raised: `ends`). uses: graphs of each pool."""

    def __init__(self, kind: str, ends: bool = False) -> None:
        self.log: list[str] = []
        self.recording: list[str] = []
        self.uses: dict[str, int] = {}
        self.invalid = False  # a call that is not permitted invalidates the capture it falls into
        self.current: Any = None  # None = the default stream
        self.capturing: Any = None
        self.idle = True
        outer = self

        class Event:
            def query(self) -> bool:
                return True

            def synchronize(self) -> None:
                outer.not_while_capturing("an event is waited for")

        class Stream:
            made = 0

            def __init__(self, device: torch.device) -> None:
                self.name = ("compute", "copies", "uploads")[Stream.made]
                Stream.made += 1

            def record_event(self) -> Event:
                outer.log.append(f"{self.name} records")
                return Event()

            def wait_event(self, event: Event) -> None:
                assert isinstance(event, Event)
                outer.log.append(f"{self.name} waits")

        class Graph:
            def capture_begin(self, pool: Any = None, **mode: str) -> None:
                assert mode == ({"capture_error_mode": "thread_local"} if kind == "cuda" else {})  # XPUGraph takes none
                if pool in outer.recording:
                    raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
                outer.recording.append(pool)
                outer.uses[pool] = outer.uses.get(pool, 0) + 1
                assert outer.current is not None, "capture on the default stream"
                assert outer.idle, "capture while earlier work may run"
                assert outer.capturing is None, "two captures at once"
                outer.capturing, self.recorder, self.pool = self, GraphRecorder(), pool
                outer.log.append(f"capture on {outer.current.name} in pool {pool}")
                self.recorder.__enter__()

            def capture_end(self) -> None:
                assert outer.capturing is self
                outer.capturing = None
                self.recorder.__exit__(None, None, None)
                self.recorder.undo()
                invalid, outer.invalid = outer.invalid, False
                if ends or not invalid:
                    outer.recording.remove(self.pool)
                if invalid:
                    raise RuntimeError("operation failed due to a previous error during capture")
                outer.log.append("captured")

            def replay(self) -> None:
                assert outer.current is not None, "replay on the default stream"
                outer.log.append(f"replay on {outer.current.name}")
                self.recorder.replay()

        self.Stream = Stream
        setattr(self, GRAPH[kind], Graph)

    def end_allocate(self, device: int, pool: str) -> None:
        if pool not in self.recording:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.recording.remove(pool)

    def release(self, device: int, pool: str) -> None:
        self.uses[pool] -= 1
        assert self.uses[pool] >= 0

    def not_while_capturing(self, what: str) -> None:
        if self.capturing is not None:
            self.invalid = True
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current, self.idle = before, False

    def set_stream(self, stream: Any) -> None:
        self.current = stream

    def set_device(self, device: Any) -> None:
        self.log.append("set_device")

    def graph_pool_handle(self) -> str:
        pools = sum(line == "new pool" for line in self.log)
        self.log.append("new pool")
        return f"{pools}"

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        return 3 << 30, 8 << 30

    def memory_reserved(self, device: Any) -> int:
        return 1 << 20

    def empty_cache(self) -> None:
        self.log.append("empty_cache")

    def synchronize(self, device: Any) -> None:
        self.not_while_capturing("synchronize")
        self.idle = True


@pytest.fixture(params=["cuda", "xpu"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[TorchRuntime, Module]:
    return _made(request.param, monkeypatch)


def _made(kind: str, monkeypatch: pytest.MonkeyPatch, ends: bool = False) -> tuple[TorchRuntime, Module]:
    """A runtime on the stand-in, whose tensors lie in host memory."""
    module = Module(kind, ends)

    def empty(n: int, dtype: Any, pin_memory: bool) -> torch.Tensor:
        assert pin_memory
        return torch.full((n,), 0xAA, dtype=dtype)

    private = {f"_{kind}_endAllocateToPool": module.end_allocate, f"_{kind}_releasePool": module.release}
    fake = SimpleNamespace(
        device=lambda kind, index: torch.device("cpu"), empty=empty, uint8=torch.uint8, _C=SimpleNamespace(**private)
    )
    setattr(fake, kind, module)
    monkeypatch.setattr(runtime_module, "torch", fake)
    return TorchRuntime(kind, 0), module


def _batch(first: int, n: int = 4) -> StepBatch:
    i32 = np.int32
    return StepBatch(
        tokens=np.arange(first, first + n, dtype=i32), token_seq=np.arange(n, dtype=i32), positions=np.zeros(n, i32),
        slots=np.arange(1, n + 1, dtype=i32), context=np.zeros(n, i32), query=np.ones(n, i32),
        last_row=np.arange(n, dtype=i32), emit=np.ones(n, bool), block_tables=(np.zeros((n, 1), i32),),
        sampling=SamplingArrays.greedy(n), uniform=1,
    )  # fmt: skip


def _sum(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
    return state + batch.tokens.sum(), StepResult(batch.tokens[:, None], batch.query, extras={"before": state})


SHAPE = StepShape(4, 4, 1, True)


def _device(runtime: TorchRuntime) -> tuple[GpuDevice, StateBox]:
    device = GpuDevice(DeviceInfo("t", "t", 1 << 30, 1, ("float32",)), runtime, KernelSet())
    return device, StateBox(device.alloc((), "int64"))


def _run(device: GpuDevice, box: StateBox, shapes: list[StepShape], steps: int, step: Callable[..., Any] = _sum) -> None:
    runs = [device.compile(step, None, box, s, Features()) for s in shapes]
    total = 0
    for i in range(steps):
        result = runs[i % len(runs)](_batch(i)).result()
        assert int(result.extras["before"]) == total
        assert result.tokens[:, 0].tolist() == list(range(i, i + 4))
        total += sum(range(i, i + 4))


def test_a_captured_step_gives_what_an_eager_one_gives(made: tuple[TorchRuntime, Module]) -> None:
    runtime, module = made
    _run(*_device(runtime), [SHAPE], 6)
    assert module.log.count("captured") == 1
    assert module.log.count("replay on compute") == 5  # the second step is captured, and replayed like those after it


def test_all_graphs_lie_in_one_pool_and_are_captured_on_the_compute_stream_after_everything_before(
    made: tuple[TorchRuntime, Module],
) -> None:
    runtime, module = made
    _run(*_device(runtime), [SHAPE, StepShape(4, 4, 2, True), StepShape(4, 4, 3, True)], 12)
    assert [line for line in module.log if line.startswith("capture ")] == ["capture on compute in pool 0"] * 3
    assert module.log.count("new pool") == 1


def test_a_step_that_cannot_be_captured_closes_the_capture_and_runs_eagerly(
    made: tuple[TorchRuntime, Module], caplog: pytest.LogCaptureFixture
) -> None:
    runtime, module = made

    def looks(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        module.not_while_capturing("a value is copied to the host")
        return _sum(params, state, batch)

    _run(*_device(runtime), [SHAPE], 4, looks)
    assert module.capturing is None
    assert sum(line.startswith("capture ") for line in module.log) == 1  # begun and ended, and not used
    assert not any(line.startswith("replay") for line in module.log)
    assert "not permitted when stream is capturing" in caplog.text


@pytest.mark.parametrize("ends", [False, True], ids=["torch 2.11", "torch 2.13"])
@pytest.mark.parametrize("kind", GRAPH)
@pytest.mark.parametrize("invalidates", [True, False])
def test_a_failed_capture_harms_no_later_one_and_says_what_went_wrong_first(
    kind: str, ends: bool, invalidates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, module = _made(kind, monkeypatch, ends)
    stream = runtime.compute

    def fails() -> None:
        if invalidates:
            module.not_while_capturing("a module is loaded")
        raise RuntimeError("what the step itself does not like")

    with pytest.raises(RuntimeError, match="a module is loaded" if invalidates else "does not like"):
        runtime.capture(fails)
    assert module.capturing is None
    assert module.recording == []
    value = torch.zeros(3)
    for n in range(1, 4):
        replay = runtime.capture(lambda: value.add_(1))
        stream.run(replay)
        assert value.tolist() == [n] * 3
    assert module.log.count("new pool") == (2 if invalidates else 1)  # what torch could not end is not used again
    if invalidates and not ends:
        assert module.uses["0"] == 0  # given back here: the graph, which never ended, does not


def test_a_capture_that_cannot_end_harms_no_later_one(made: tuple[TorchRuntime, Module]) -> None:
    """Nothing raised while it was recorded: another thread's call invalidated it."""
    runtime, module = made

    def invalidated() -> None:
        module.invalid = True

    with pytest.raises(RuntimeError, match="previous error during capture"):
        runtime.capture(invalidated)
    assert module.recording == []
    runtime.capture(lambda: None)


def test_without_torch_s_private_names_the_first_error_is_told_all_the_same(
    made: tuple[TorchRuntime, Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, module = made
    monkeypatch.setattr(runtime_module.torch, "_C", SimpleNamespace())
    with pytest.raises(RuntimeError, match="a module is loaded"):
        runtime.capture(lambda: module.not_while_capturing("a module is loaded"))
    runtime.capture(lambda: None)  # in another pool


def test_a_result_is_copied_beside_the_next_step_and_after_its_own(made: tuple[TorchRuntime, Module]) -> None:
    runtime, module = made
    device, box = _device(runtime)
    run = device.compile(_sum, None, box, None, None)
    module.log.clear()
    run(_batch(0))
    assert module.log == ["compute records", "compute records", "copies waits", "copies records"]  # batch in, step, result


def test_memory_counts_are_the_module_s_and_what_is_unused_is_given_back(made: tuple[TorchRuntime, Module]) -> None:
    runtime, module = made
    device, _ = _device(runtime)
    memory = device.memory()
    assert (memory.total, memory.free) == (8 << 30, 3 << 30)
    assert device.memory_used() == 1 << 20
    device.close()
    assert module.log[-1] == "empty_cache"


def test_loading_is_in_order_with_the_compute_stream(made: tuple[TorchRuntime, Module]) -> None:
    runtime, module = made
    assert module.log[0] == "set_device"
    assert module.current is runtime.compute.raw
    module.current = None  # another thread starts with the default stream
    device, _ = _device(runtime)
    device.put(np.arange(5))
    assert module.current is runtime.compute.raw
    module.current = None
    device.enter()
    assert module.current is runtime.compute.raw, "a thread that takes the device over computes on its stream"


@pytest.mark.parametrize("kind", GRAPH)
def test_every_name_it_uses_is_one_of_torch_s(kind: str) -> None:
    module, graph = getattr(torch, kind), getattr(getattr(torch, kind), GRAPH[kind])
    assert [n for n in USED if not hasattr(module, n)] == []
    assert [n for n in ("capture_begin", "capture_end", "replay") if not hasattr(graph, n)] == []
    assert [n for n in ("record_event", "wait_event") if not hasattr(module.Stream, n)] == []
    assert [n for n in ("query", "synchronize") if not hasattr(module.Event, n)] == []
    assert [n for n in (f"_{kind}_endAllocateToPool", f"_{kind}_releasePool") if not hasattr(torch._C, n)] == []
    assert ("capture_error_mode" in inspect.signature(graph.capture_begin).parameters) == (kind == "cuda")


DRIVERS = {
    "cuda": ("cuda", {"major": 9, "minor": 0, "multi_processor_count": 132}, "sm_90", 132),
    "hip": ("cuda", {"gcnArchName": "gfx942:sramecc+:xnack-", "multi_processor_count": 304}, "gfx942", 304),
    "xpu": ("xpu", {"name": "Intel(R) Arc(TM) B580 Graphics", "max_compute_units": 160}, "xe2", 160),
}


@pytest.mark.parametrize("build", DRIVERS)
def test_a_driver_says_what_torch_s_module_says(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, properties, arch, cores = DRIVERS[build]
    facts = SimpleNamespace(**{"name": "some card", **properties})
    module = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 2, get_device_properties=lambda i: facts,
        mem_get_info=lambda i: (3 << 30, 8 << 30),
    )  # fmt: skip
    monkeypatch.setattr(torch, kind, module)
    for other in DRIVERS:
        monkeypatch.setattr(torch.version, other, None, raising=False)
    driver = TorchDriver(build)
    assert "built for something else" in (driver.why_not() or "")
    monkeypatch.setattr(torch.version, build, "1.0")
    assert driver.why_not() is None
    assert driver.count() == 2
    seen = driver.look(1)
    assert (seen.arch, seen.cores, seen.memory_bytes, seen.free_bytes) == (arch, cores, 8 << 30, 3 << 30)
    module.is_available = lambda: False
    assert "the driver does not answer" in (driver.why_not() or "")
