"""A GPU stand-in: the runtime of `runtime.py` on the host, built to be stricter than hardware.

Streams hold their work back until somebody needs it (`late`). A missing wait or a buffer reused too early thus gives a wrong
result every time, not once in a million steps. Graphs record the operations on tensors, not the Python around them, and replay
exactly those on the same memory. As on a GPU, decisions in Python during a capture are final. Work that cannot be captured
there is refused here. For tests only: a machine that really computes on its processor has a platform for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from thalweg.backends.host import host_memory, process_memory
from thalweg.backends.tensors import memory_of, tensors_in
from thalweg.backends.torch_gpu.runtime import Work

LOOKS = frozenset({"item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "nonzero", "__array__"})
"""Methods of a tensor that need its values on the host."""
GROWS = ("nonzero", "unique", "masked_select", "_local_scalar_dense")
"""Operations with a result of a shape, or value, that the host must know."""
MAKES = ("arange", "zeros", "ones", "empty", "full", "tensor", "rand", "randn", "linspace", "eye")
"""Operations that make a tensor on a given device: without one, on the host."""


class LateEvent:
    """`query` lets a little work happen, as time passing would."""

    def __init__(self, stream: LateStream) -> None:
        self._stream, self.fired = stream, False

    def query(self) -> bool:
        if not self.fired:
            self._stream.drive_one()
        return self.fired

    def synchronize(self) -> None:
        while not self.fired:
            self._stream.drive_one()


class LateStream:
    """late: work waits until an event behind it is waited for. Otherwise it is done at once. strict: work that makes a
    tensor without naming a device is an error, as it would land on the host."""

    def __init__(self, late: bool, strict: bool = False) -> None:
        self._late, self._strict = late, strict
        self._queue: deque[Callable[[], None]] = deque()

    def run(self, work: Work) -> None:
        self._queue.append(_require_device(work) if self._strict else work)
        self._hurry()

    def record(self) -> LateEvent:
        event = LateEvent(self)

        def fire() -> None:
            event.fired = True

        self._queue.append(fire)
        self._hurry()
        return event

    def wait(self, event: Any) -> None:
        self._queue.append(event.synchronize)
        self._hurry()

    def drive_one(self) -> None:
        """Do the next thing in order. RuntimeError: nothing is left, so whoever waits here waits for ever."""
        if not self._queue:
            raise RuntimeError("an event is waited for that nothing will fire")
        self._queue.popleft()()

    def drain(self) -> None:
        while self._queue:
            self.drive_one()

    def _hurry(self) -> None:
        if not self._late:
            self.drain()


class HostRuntime:
    """late: as LateStream. memory_bytes: the size it claims. 0 = the host's."""

    def __init__(self, late: bool = True, memory_bytes: int = 0) -> None:
        self.device = torch.device("cpu")
        self.compute, self.copies, self.uploads = LateStream(late, strict=True), LateStream(late), LateStream(late)
        self._bytes = memory_bytes
        self.captures = self.replays = 0

    def allocate_pinned(self, n: int) -> Tensor:
        """With its former contents, which no one may read."""
        return torch.full((n,), 0xAA, dtype=torch.uint8)

    def capture(self, work: Work) -> Work:
        self.synchronize()
        recorder = GraphRecorder()
        with torch.inference_mode(), _ExplicitDevices(), _NoHostReads(), recorder:
            work()
        recorder.undo()
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            recorder.replay()

        return replay

    def memory(self) -> tuple[int, int]:
        total, free = host_memory()
        return (self._bytes, min(free, self._bytes)) if self._bytes else (total, free)

    def memory_reserved(self) -> int:
        return process_memory()

    def trim(self) -> None:
        return

    def join(self) -> None:
        self.compute.drain()

    def synchronize(self) -> None:
        self.compute.drain()
        self.copies.drain()
        self.uploads.drain()


def _require_device(work: Work) -> Work:
    def strictly() -> None:
        with _ExplicitDevices():
            work()

    return strictly


class _ExplicitDevices(TorchFunctionMode):
    """Refuses tensors made without an explicit device: the device and the host are two places on a real machine."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if (
            getattr(func, "__name__", "") in MAKES
            and kwargs.get("device") is None
            and not isinstance(kwargs.get("out"), Tensor)
        ):
            raise RuntimeError(f"{func.__name__}() makes a tensor on the host; name the device")
        return func(*args, **kwargs)


class _NoHostReads(TorchFunctionMode):
    """Refuses operations that copy a value to the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in LOOKS:
            raise RuntimeError(f"cannot be captured: {name}() looks at a tensor's values")
        return func(*args, **(kwargs or {}))


class GraphRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations with the very tensors they read and write, and does them again."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []
        self._own: set[int] = set()
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch keeps its compiler away from a mode's functions. To do so it imports that compiler at the first call,
        a second of the first capture, for a compiler that never sees this. Here it is asked not to."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        _refuse(func, args, kwargs)
        inputs = {memory_of(t) for t in tensors_in((args, kwargs))}
        for t in _mutated_args(func, args, kwargs):
            if memory_of(t) not in self._own and memory_of(t) not in self._before:
                whole = t.as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0)
                self._before[memory_of(t)] = (whole, whole.clone())
        out = func(*args, **kwargs)
        fresh = [(i, t) for i, t in enumerate(tensors_in(out)) if memory_of(t) not in inputs]
        self._own |= {memory_of(t) for _, t in fresh}
        self._calls.append((func, args, kwargs, fresh))
        return out

    def undo(self) -> None:
        """Older memory that recording changed is put back: capturing runs nothing."""
        with torch.inference_mode():
            for whole, before in self._before.values():
                whole.copy_(before)

    def replay(self) -> None:
        with torch.inference_mode():
            for func, args, kwargs, fresh in self._calls:
                got = list(tensors_in(func(*args, **kwargs)))
                for i, t in fresh:
                    t.copy_(got[i])


def _refuse(func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    name = func.overloadpacket.__name__
    if name.startswith(GROWS) or torch.Tag.data_dependent_output in func.tags:
        raise RuntimeError(f"cannot be captured: {name} gives the host something to wait for")
    if name in ("index", "index_put", "index_put_") and any(
        t is not None and t.dtype == torch.bool for t in args[1] if t is not None
    ):
        raise RuntimeError(f"cannot be captured: {name} with a mask of booleans counts them first")
    if name in ("lift_fresh", "_pin_memory"):
        raise RuntimeError(f"cannot be captured: {name} brings a value from the host")


def _mutated_args(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    for i, a in enumerate(func._schema.arguments):
        if a.alias_info is not None and a.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(a.name)
            yield from tensors_in(value)
