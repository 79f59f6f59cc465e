"""The few things other than tensors that a device needs from torch: streams, events, pinned memory, graphs, memory counts.

A `Runtime` has everything in one object. The device above is thus one class for every vendor, and runs on the host in tests
(`host.py`). `TorchRuntime` is the real one: the module `torch.cuda` (NVIDIA, and AMD under its name) or `torch.xpu`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

Work = Callable[[], None]


class Event(Protocol):
    """A point in a stream."""

    def query(self) -> bool:
        """Has everything before it been done?"""
        ...

    def synchronize(self) -> None:
        """Wait until it has."""
        ...


class Stream(Protocol):
    """Work in order. Two streams know nothing of each other's order unless one waits for the other's event."""

    def run(self, work: Work) -> None:
        """Call `work`, which launches operations, so that they take effect after everything this stream was given before."""
        ...

    def record(self) -> Event: ...

    def wait(self, event: Event) -> None:
        """Later work of this stream starts after the event. The host does not wait."""
        ...


class Runtime(Protocol):
    """One device."""

    device: torch.device

    @property
    def compute(self) -> Stream:
        """Runs steps."""
        ...

    @property
    def copies(self) -> Stream:
        """Carries results back, while steps run."""
        ...

    @property
    def uploads(self) -> Stream:
        """Brings weights, while others are packed."""
        ...

    def allocate_pinned(self, n: int) -> Tensor:
        """u8[n] of host memory that the device copies from and to without the processor."""
        ...

    def capture(self, work: Work) -> Work:
        """Record the launches of `work` on the compute stream without running them. The result launches them again on the same
        memory. RuntimeError if `work` cannot be recorded (it looks at a value, say)."""
        ...

    def memory(self) -> tuple[int, int]:
        """(total, free) bytes of the device."""
        ...

    def memory_reserved(self) -> int:
        """Bytes this process holds on the device through torch."""
        ...

    def trim(self) -> None:
        """Free unused memory."""
        ...

    def join(self) -> None:
        """Operations this thread now launches outside any stream come after those the compute stream was given."""
        ...

    def synchronize(self) -> None: ...


class TorchStream:
    """A stream of `torch.cuda` or `torch.xpu`."""

    def __init__(self, module: Any, device: torch.device) -> None:
        self._module, self.raw = module, module.Stream(device=device)

    def run(self, work: Work) -> None:
        with self._module.stream(self.raw):
            work()

    def record(self) -> Event:
        event: Event = self.raw.record_event()
        return event

    def wait(self, event: Event) -> None:
        self.raw.wait_event(event)


class TorchRuntime:
    """kind: "cuda" or "xpu", torch's names of the device type. index: among the devices this process sees."""

    def __init__(self, kind: str, index: int) -> None:
        self._module: Any = getattr(torch, kind)
        self._graph: Any = self._module.CUDAGraph if kind == "cuda" else self._module.XPUGraph
        self.device = torch.device(kind, index)
        self._kind, self._index = kind, index
        self._module.set_device(self.device)
        self.compute, self.copies, self.uploads = (TorchStream(self._module, self.device) for _ in range(3))
        self._module.set_stream(self.compute.raw)  # so that loading and packing are in order with it
        # A copy thread or a collective's watchdog may call the driver meanwhile: only this thread's calls belong to a capture.
        self._mode = {"capture_error_mode": "thread_local"} if kind == "cuda" else {}  # torch.xpu has one mode
        self._pool: Any = None
        self._spoilt: list[Any] = []
        """Graphs with a capture that failed and could not end: torch's pinned memory may still ask about them."""

    def allocate_pinned(self, n: int) -> Tensor:
        return torch.empty(n, dtype=torch.uint8, pin_memory=True)

    def capture(self, work: Work) -> Work:
        """All graphs share one memory pool: they run in sequence, so their temporaries may overlap. After a capture that could
        not be ended there is another pool."""
        if self._pool is None:
            self._pool = self._module.graph_pool_handle()
        graph = self._graph()
        self.synchronize()

        def record() -> None:
            try:
                graph.capture_begin(pool=self._pool, **self._mode)
                work()
            except BaseException:
                self._abandon(graph)
                raise  # the first error: errors on ending the capture follow from it
            try:
                graph.capture_end()
            except BaseException:
                self._leave_pool(graph)
                raise

        self.compute.run(record)
        replay: Work = graph.replay
        return replay

    def _abandon(self, graph: Any) -> None:
        """End an unwanted capture. The driver may have ended it already, and then torch stops half way."""
        try:
            graph.capture_end()
        except RuntimeError as e:
            logger.debug("ending a failed capture: %s", e)
            self._leave_pool(graph)

    def _leave_pool(self, graph: Any) -> None:
        """Where `capture_end` raised, torch (before 2.13, and torch.xpu) still gives this pool's memory out for a finished
        capture. It refuses the next one in it ("already recording"). It has only private names for ending that."""
        pool, self._pool = self._pool, None
        end, release = (getattr(torch._C, f"_{self._kind}_{name}", None) for name in ("endAllocateToPool", "releasePool"))
        if end is None or release is None:
            return
        try:
            end(self._index, pool)
        except RuntimeError:  # this torch ended it itself, and the graph gives the pool back
            return
        release(self._index, pool)
        self._spoilt.append(graph)

    def memory(self) -> tuple[int, int]:
        free, total = self._module.mem_get_info(self.device)
        return int(total), int(free)

    def memory_reserved(self) -> int:
        return int(self._module.memory_reserved(self.device))

    def trim(self) -> None:
        self._module.empty_cache()

    def join(self) -> None:
        """The compute stream is this thread's own."""
        self._module.set_stream(self.compute.raw)

    def synchronize(self) -> None:
        self._module.synchronize(self.device)
