"""The `Device` that a platform opens (memory, kernels, attention, collectives), and its executables of a step.

A first backend implements Device.info, memory, put, alloc_kv, alloc and compile. Everything else has a default here.
It never supplies a worker, runner, sampler, scheduler or model.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from thalweg.hal.attention import AttentionBackend
from thalweg.hal.comm import Communicator, Solo, StageLinks
from thalweg.hal.kv import KVLayout
from thalweg.hal.op import Kernel
from thalweg.hal.step import Array, Features, Params, StateBox, Step, StepBatch, StepResult, StepShape
from thalweg.hal.times import Times

if TYPE_CHECKING:
    from thalweg.hal.platform import Place


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Facts of the opened device, for defaults, logs and `collect-env`."""

    name: str
    kind: str
    """The platform's name."""
    memory_bytes: int
    cores: int
    dtypes: tuple[str, ...]
    """Compute types it runs well, best first."""
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, as the device sees them now."""

    total: int
    free: int


class Pending(Protocol):
    """A launched step. Results of one device become ready in launch order."""

    def ready(self) -> bool: ...

    def result(self) -> StepResult:
        """Wait for the (host) result and return it. May be called once. Raises the step's error."""
        ...


class Export(Protocol):
    """Blocks on their way to the host."""

    def ready(self) -> bool: ...

    def result(self) -> np.ndarray:
        """u8[blocks, bytes], waited for if need be. May be called once."""
        ...


@dataclass(slots=True)
class CompletedExport:
    """An `Export` that has arrived."""

    rows: np.ndarray

    def ready(self) -> bool:
        return True

    def result(self) -> np.ndarray:
        return self.rows


class Executable(Protocol):
    """A compiled, captured or eager step. Calls launch and return, and take effect in order."""

    def __call__(self, batch: StepBatch) -> Pending: ...


@dataclass(frozen=True, slots=True)
class Background:
    """A second queue of a device, for work that steps do not wait for, such as encoders. Only its kernels run there. They read
    weights packed by the device's kernels of the same op."""

    kernels: Sequence[Kernel]
    attention: Sequence[AttentionBackend]
    compile: Callable[[Step, Params, StateBox], Executable]
    """Of eager steps. Its executables return at once, and take effect in order among themselves."""


class FileBytes(Protocol):
    """A contiguous range of bytes in a file."""

    @property
    def count(self) -> int: ...

    def into(self, at: int, buffer: np.ndarray) -> None:
        """Fill the buffer, u8[n], with the bytes from `at` on. Any thread may. Raises CheckpointError."""
        ...


@dataclass(frozen=True, slots=True)
class FileArray:
    """A parameter stored in files: its bytes are those of `parts`, in sequence."""

    shape: tuple[int, ...]
    dtype: str
    parts: Sequence[FileBytes]


Rehearsal = Callable[[], tuple[Executable, StepBatch]]
"""Makes an executable and a batch of scratch rows for it."""


class Device(ABC):
    """The device of a worker. Not thread-safe: one thread drives it at a time. Another one calls `enter` first."""

    info: DeviceInfo
    comm: Communicator = Solo()
    """The ranks that share every layer."""
    stages: StageLinks = StageLinks()
    """The ranks that compute the layers before and after."""
    kernels: Sequence[Kernel] = ()
    """Kernels in order of preference. Ops without one run their reference body, and the kernel plan says so."""
    attention: Sequence[AttentionBackend] = ()
    """Attention backends in order of preference."""
    pads: bool = False
    """Every new shape of a batch costs a compilation, so batches come padded to a few."""
    warms: bool = False
    """Kernels of a step are prepared at first use, which is slow. Steps of every kind therefore come to `rehearse`, whether a
    bucket holds them or not."""
    keeps_tables: bool = False
    """The device keeps block tables: batches name their rows and the changes (`TableRows`). Batches with copies are accepted
    too."""
    rounds: bool = False
    """Weights rounded at load are rounded on the device, by torch. They are put there dense first."""
    bodies_invariant: bool = True
    """An op's reference body gives a row the same bits in any batch, as it does where it runs as written. False where a
    compiler decides the order of sums."""

    moves_blocks: bool = False
    """`export` and `import_` work, so KV blocks can go to a store and come back."""

    @property
    def regroups(self) -> bool:
        """`regroup` works. Default: False."""
        return False

    def regroup(self, place: Place) -> None:
        """Exchange with a new group of ranks, as `Communicator.regroup`. Executables forget what they have recorded or captured
        of the old one. Only where `regroups`."""
        raise NotImplementedError(f"{self.info.kind}: regroup")

    def abort(self) -> None:
        """End all exchanges with other ranks, as `Communicator.abort`."""
        self.comm.abort()
        self.stages.abort()

    @abstractmethod
    def memory(self) -> Memory: ...

    def enter(self) -> None:
        """The calling thread drives this device from now on. Default: nothing, a device that keeps no state per thread."""
        return

    def memory_used(self) -> int:
        """Bytes this process holds on the device now. Default: all but the free bytes."""
        now = self.memory()
        return now.total - now.free

    @abstractmethod
    def put(self, t: Array) -> Array:
        """A host array (numpy, or the framework's host tensor) on the device. May share memory with a read-only source.
        An array already on the device stays as it is."""

    def arrive(self, parameters: Sequence[FileArray]) -> Generator[Array] | None:
        """The parameters on the device, in this order, each on request. Other threads may read files ahead, into memory of
        bounded size. Closing the iterator ends that. Default: None, they are `put`."""
        return None

    def put_on(self, t: Array, rank: int) -> Any:
        """`put`, on one of the ranks this device drives: its own share of a parameter. Only where place.devices are several."""
        raise NotImplementedError(f"{self.info.kind}: put_on")

    def join(self, parts: Sequence[Any]) -> Any:
        """One parameter from arrays placed by `put_on`, or from weights a kernel packed from them: one nest of arrays per rank,
        all alike. Inside a step every rank sees its own. Only where place.devices are several."""
        raise NotImplementedError(f"{self.info.kind}: join")

    def normal(self, shape: tuple[int, ...], dtype: str, *, std: float, seed: int) -> Array | None:
        """Made-up weights, drawn on the device: the same for the same seed, but not on another kind of device. Default:
        None, the host draws them."""
        return None

    def blank(self, shape: tuple[int, ...], dtype: str) -> Array | None:
        """Uninitialised host memory into which a parameter is read, to be `put` and kept as it is. Default: None, the framework
        allocates it."""
        return None

    @abstractmethod
    def alloc_kv(self, layout: KVLayout, blocks: int) -> Array:
        """A zeroed cache of one layer: `blocks` blocks of `layout`, block 0 being scratch."""

    def alloc_caches(self, layouts: Sequence[KVLayout], blocks: Sequence[int]) -> list[Array]:
        """The caches of a model, each as `alloc_kv` makes it. Default: in sequence."""
        return [self.alloc_kv(layout, n) for layout, n in zip(layouts, blocks, strict=True)]

    def background(self) -> Background | None:
        """A second queue, apart from that of the steps. Called once. Default: None, there is only one."""
        return None

    def populate(self, caches: Sequence[tuple[Array, range]]) -> bool:
        """Nothing runs now: for a few milliseconds, get memory for blocks soon to be used for the first time. caches: the
        arrays of `alloc_caches`, each with those blocks. Returns whether there is more to do. Default: False, all memory is
        there from the start."""
        return False

    @abstractmethod
    def alloc(self, shape: tuple[int, ...], dtype: str) -> Array:
        """A zeroed array that lives in the state (the token history, adapters)."""

    def write(self, array: Array, at: int, values: Array) -> Array:
        """`array`, from `alloc`, with `values` in row `at` of its first dimension. values: a host array of shape
        array.shape[1:], converted to the array's type. Steps launched before read the old row, later ones the new one. The host
        does not wait for them. The returned array, which may be another one, replaces it in the state."""
        raise NotImplementedError(f"{self.info.kind}: write")

    @abstractmethod
    def compile(
        self, step: Step, params: Params, state: StateBox, shape: StepShape | None, features: Features | None
    ) -> Executable:
        """An executable of the step, for batches padded to `shape` with features within `features`. None = any: the only
        request on a platform with empty Defaults.buckets."""

    def widen(self, features: Features) -> Features:
        """The features of an executable compiled for these, a superset. A superset gives the same tokens, and few supersets
        mean few executables. Default: the same."""
        return features

    def warmup_buckets(self, buckets: Sequence[StepShape]) -> Sequence[StepShape]:
        """The buckets to compile before the first request, in the order of work, where compiling is slow. Each runs once, on
        scratch rows. Default: none."""
        return ()

    def rehearse(self, steps: Sequence[Rehearsal]) -> None:
        """Before the first request: make whatever is made when these steps are first met, in this order. Their results mean
        nothing. Default: each runs once."""
        for make in steps:
            run, batch = make()
            run(batch).result()

    def measure(self, step: Step, params: Params, state: StateBox, batch: StepBatch) -> int:
        """Peak workspace bytes of this batch. Default: 0 (the platform reserves by its own memory rule)."""
        return 0

    def peak(self, dtype: str) -> float | None:
        """Operations per second that the device's instructions do at most on numbers of this type: "float32",
        "bfloat16", "int8" or "int4" (by int8). A multiplication and an addition are two. Measured now, without reading memory,
        in a moment. Default: None, unknown."""
        return None

    def read_rate(self) -> float | None:
        """Bytes per second of a plain read of memory, in address order. Measured now. Default: None, unknown: the rate at which
        kernels read is the ceiling."""
        return None

    @contextlib.contextmanager
    def record_times(self) -> Iterator[Times | None]:
        """Steps record where their time goes while this is open, at some cost. Default: None, unknown."""
        yield None

    def copy_blocks(self, kv: Array, source: np.ndarray, target: np.ndarray) -> Array:
        raise NotImplementedError(f"{self.info.kind}: copy_blocks")

    def read_blocks(self, kv: Array, blocks: np.ndarray) -> bytes:
        raise NotImplementedError(f"{self.info.kind}: read_blocks")

    def write_blocks(self, kv: Array, blocks: np.ndarray, data: bytes) -> Array:
        raise NotImplementedError(f"{self.info.kind}: write_blocks")

    def export(self, caches: Sequence[Array], blocks: np.ndarray) -> Export:
        """Copy blocks of a KV group to the host. The copy is ordered with the steps: it has the writes of steps launched before
        it, and none of later ones. Only where `moves_blocks`.

        caches: every cache of the group. blocks: i32[N]. A row of the result is one block: its bytes in each cache, in the
        order of `caches`, in C order. Default: waits for the steps, and reads each cache."""
        parts = [np.frombuffer(self.read_blocks(kv, blocks), np.uint8).reshape(len(blocks), -1) for kv in caches]
        return CompletedExport(np.concatenate(parts, axis=1))

    def import_(self, caches: Sequence[Array], blocks: np.ndarray, rows: np.ndarray) -> list[Array]:
        """Write blocks that `export` read, here or in another process, and return the caches. Later steps see them, and
        steps launched before do not. Only where `moves_blocks`.

        blocks: i32[N], each once. rows: u8[N, bytes]; the caller does not write to it afterwards. Default: writes each
        cache after the steps launched before."""
        out, at = [], 0
        for kv in caches:
            n = row_bytes(kv)
            out.append(self.write_blocks(kv, blocks, rows[:, at : at + n].tobytes()))
            at += n
        return out

    def synchronize(self) -> None:
        """Wait for everything launched. Default: nothing outlives a call."""
        return

    def close(self) -> None:
        """Give everything back. The device is not used again."""
        return


def row_bytes(kv: Array) -> int:
    """Bytes of one block in a cache: an array of any framework, with blocks as its first dimension."""
    return int(math.prod(kv.shape[1:])) * int(kv.dtype.itemsize)
