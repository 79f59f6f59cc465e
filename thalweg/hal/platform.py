"""What a backend is: a `Platform` (stateless facts and rules) and the `Device` it opens (memory, kernels, executables).

A first backend implements Platform.probe, defaults, open and Device.info, memory, put, alloc_kv, compile; everything
else has a default here. It never supplies a worker, runner, sampler, scheduler or model.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np

from thalweg.errors import DeviceError
from thalweg.hal import HAL_API
from thalweg.hal.attention import AttentionBackend
from thalweg.hal.comm import Communicator, Solo
from thalweg.hal.kv import KVLayout
from thalweg.hal.op import Kernel
from thalweg.hal.step import Array, Features, Params, StateBox, Step, StepBatch, StepResult, StepShape


@dataclass(frozen=True, slots=True)
class Probe:
    """Can this machine run the platform? score 0 = no; `--device auto` takes the highest. reason: one sentence, either way."""

    score: int
    reason: str


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a platform may know of a model when it chooses defaults."""

    architecture: str
    dtype: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_len: int
    weight_bytes: int


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
class StepSizes:
    """What bounds the temporaries of one step, for `Platform.workspace`."""

    tokens: int
    """Most tokens of a step."""
    seqs: int
    """Most rows that sample."""
    max_len: int
    hidden: int
    inner: int
    """Width of the MLP."""
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    dtype_bytes: int
    batch_invariant: bool = True
    """Kernels whose rows depend on the rest of the batch are ruled out, and need no room."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, as the device sees them now."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the platform would choose where the user said nothing. None = the global default."""

    dtype: str | None = None
    block_tokens: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_bytes: int | None = None
    """Fixed cache size; None = the rest of the memory fraction after weights and workspace."""
    int4: Literal["w4a16", "w4a8"] = "w4a16"
    """What `--quantization int4` means here (`quantization.online`): inputs as they are, or rounded to 8 bits too, where
    integer products are faster."""
    pipeline_depth: int | None = None
    """Steps launched before the oldest is read. 1 where compile() runs eagerly on the calling thread."""
    buckets: tuple[StepShape, ...] = ()
    """Shapes to compile; empty = executables take any shape."""
    unpadded: bool = False
    """A batch that no bucket holds runs as it is, by an executable compiled for any shape. False: it is an error, because
    the buckets are meant to hold every batch."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What no step of this engine exceeds, for `Platform.buckets`: the resolved configuration."""

    tokens: int
    seqs: int
    max_len: int
    block_tokens: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One objection to a configuration, in words: which field, what is wrong, what to do."""

    field: str
    message: str


@dataclass(frozen=True, slots=True)
class Parallel:
    """How many ranks the user wants, by kind."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def world(self) -> int:
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True, slots=True)
class Place:
    """Where one worker process sits: its rank (of several devices, that of the first), how many devices it drives, and the
    environment it needs."""

    rank: int = 0
    world: int = 1
    devices: tuple[int, ...] = (0,)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topology:
    """Processes to start: 8 x 1 device on one kind of machine, 1 x 8 on another."""

    places: tuple[Place, ...]


class Pending(Protocol):
    """A launched step. Results of one device become ready in launch order."""

    def ready(self) -> bool: ...

    def result(self) -> StepResult:
        """Wait for and return the (host) result. May be called once. Raises what the step raised."""
        ...


class Executable(Protocol):
    """A compiled, captured or eager step. Launches and returns; calls take effect in order."""

    def __call__(self, batch: StepBatch) -> Pending: ...


Rehearsal = Callable[[], tuple[Executable, StepBatch]]
"""Makes an executable and a batch for it, all of whose rows are scratch."""


class Device(ABC):
    """What a worker holds. Not thread-safe: one thread drives it."""

    info: DeviceInfo
    comm: Communicator = Solo()
    kernels: Sequence[Kernel] = ()
    """In order of preference. Ops without one run their reference body, and the kernel plan says so."""
    attention: Sequence[AttentionBackend] = ()
    """In order of preference."""
    pads: bool = False
    """Every new shape of a batch costs a compilation, so batches come padded to a few."""
    warms: bool = False
    """What a step launches is made when it is first met, and that takes long: steps of every kind come to `rehearse`, whether a
    bucket holds them or not."""
    keeps_tables: bool = False
    """It keeps block tables: batches name their rows and what changed (`TableRows`). Batches with copies are taken too."""
    bodies_invariant: bool = True
    """An op's reference body gives a row the same bits in any batch, as it does where it runs as written. False where a
    compiler decides the order of sums."""

    @abstractmethod
    def memory(self) -> Memory: ...

    def used(self) -> int:
        """Bytes this process holds on the device now. Default: everything that is not free."""
        now = self.memory()
        return now.total - now.free

    @abstractmethod
    def put(self, t: Array) -> Array:
        """A host array (numpy, or the framework's host tensor) on the device. May share memory with a read-only source.
        An array that is on the device already stays as it is."""

    def put_on(self, t: Array, rank: int) -> Any:
        """`put`, on one of the ranks this device drives: its own share of a parameter. Only where place.devices are several."""
        raise NotImplementedError(f"{self.info.kind}: put_on")

    def join(self, parts: Sequence[Any]) -> Any:
        """What `put_on` placed, or a kernel packed of it, one nest of arrays per rank and all alike, as one parameter: inside
        a step every rank sees its own. Only where place.devices are several."""
        raise NotImplementedError(f"{self.info.kind}: join")

    def normal(self, shape: tuple[int, ...], dtype: str, *, std: float, seed: int) -> Array | None:
        """Made-up weights, drawn on the device: the same for the same seed, but not on another kind of device. Default:
        None, the host draws them."""
        return None

    def blank(self, shape: tuple[int, ...], dtype: str) -> Array | None:
        """Host memory, its contents unsaid, into which a parameter is read that is then `put` and kept as it is. Default:
        None, wherever the framework takes it."""
        return None

    @abstractmethod
    def alloc_kv(self, layout: KVLayout, blocks: int) -> Array:
        """A zeroed cache of one layer: `blocks` blocks of `layout`, block 0 being scratch."""

    @abstractmethod
    def alloc(self, shape: tuple[int, ...], dtype: str) -> Array:
        """A zeroed array that lives in the state (the token history)."""

    @abstractmethod
    def compile(
        self, step: Step, params: Params, state: StateBox, shape: StepShape | None, features: Features | None
    ) -> Executable:
        """An executable of the step, for batches padded to `shape` whose features `features` covers. None = any:
        what a platform whose Defaults.buckets is empty is asked for."""

    def widen(self, features: Features) -> Features:
        """What an executable is compiled for where these are asked for: a superset gives the same tokens, and few supersets
        mean few executables. Default: nothing more."""
        return features

    def prepared(self, buckets: Sequence[StepShape]) -> Sequence[StepShape]:
        """Of the buckets, in the order of work, those whose executables are made before the first request (each runs once, on
        scratch rows) because making one takes long. Default: none."""
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
        """Operations per second (a multiplication and an addition are two) that the device's instructions do at most on numbers
        of this type, "float32", "bfloat16", "int8" or "int4" (by int8): measured now, without reading memory, which takes a
        moment. Default: None, it is not known."""
        return None

    def copy_blocks(self, kv: Array, source: np.ndarray, target: np.ndarray) -> Array:
        raise NotImplementedError(f"{self.info.kind}: copy_blocks")

    def read_blocks(self, kv: Array, blocks: np.ndarray) -> bytes:
        raise NotImplementedError(f"{self.info.kind}: read_blocks")

    def write_blocks(self, kv: Array, blocks: np.ndarray, data: bytes) -> Array:
        raise NotImplementedError(f"{self.info.kind}: write_blocks")

    def synchronize(self) -> None:
        """Wait for everything launched. Default: nothing outlives a call."""
        return

    def close(self) -> None:
        """Give everything back. The device is not used again."""
        return


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel. cached: it was there already."""

    seconds: float
    cached: bool


class Absent(ABC):
    """A device that is not here, for which kernels are compiled all the same: steps that run on what `platform` opens compute
    nothing, and what they would have compiled is noted."""

    platform: Platform

    @property
    @abstractmethod
    def cache(self) -> Path:
        """The folder in which processes on a device that is there will look."""

    @abstractmethod
    def kernels(self) -> list[tuple[str, str]]:
        """(key, name) of what steps have asked for so far, in the order of asking. Keys are the same in every process."""

    @abstractmethod
    def compile(self, key: str) -> Compiled:
        """Into the cache. Raises what the compiler does, or says that the device cannot run it."""


class Platform(ABC):
    """One hardware family with its knobs. Immutable; constructing it touches no driver and imports no framework."""

    name: str
    api: int = HAL_API
    options: Any = None
    """The platform's own knobs, an instance of a frozen dataclass: its defaults, or what `configured` was given. None: it has
    none. Every method answers for these knobs."""
    runs_models: bool = True
    """False: compile() ignores step and params, so the worker builds no model and loads no tensor framework (null)."""

    def configured(self, options: Any) -> Self:
        """This platform with the knobs a user set, of the class of `options`. None: itself. A platform whose knobs may hold
        wrong values says so here. Raises thalweg.errors.DeviceError with the remedy."""
        if options is None:
            return self
        if self.options is None or not isinstance(options, type(self.options)):
            takes = f"takes {type(self.options).__name__}" if self.options is not None else "has no options"
            raise DeviceError(f"device: {self.name} {takes}, not {type(options).__name__}")
        made = copy.copy(self)
        made.options = options
        return made

    @abstractmethod
    def probe(self) -> Probe:
        """No driver initialisation, no framework import."""

    def topology(self, want: Parallel) -> Topology:
        """Default: one process per device."""
        return Topology(tuple(Place(rank=r, world=want.world, devices=(r,)) for r in range(want.world)))

    @abstractmethod
    def defaults(self, model: ModelFacts, device: DeviceInfo) -> Defaults: ...

    def buckets(self, defaults: Defaults, limits: Limits) -> tuple[StepShape, ...]:
        """Shapes to compile for, once every size is settled: some shape must hold every step within the limits.
        Default: what `defaults` says."""
        return defaults.buckets

    def describe(self) -> DeviceInfo | None:
        """The device, as far as it is known without opening it or loading a framework: what memory is planned with.
        Default: None, unknown until it is opened."""
        return None

    def unplanned(self) -> str:
        """Why `describe` said None, and what to do about it. Default: what `probe` says."""
        return self.probe().reason

    def packs(self, dtype: str) -> bool:
        """Do this platform's kernels keep their own copy of the matrices they multiply by (so that an embedding that is
        also the output matrix lies in memory twice)? Default: no."""
        return False

    def workspace(self, s: StepSizes) -> int:
        """Temporaries of the largest step in bytes, an estimate, for planning. Default: that of an eager step, where each
        layer's temporaries are freed before the next one's are made: the residual stream, and the largest of what
        attention, the MLP and sampling need."""
        stream = 3 * s.tokens * s.hidden * s.dtype_bytes
        qkv = (s.heads + 2 * s.kv_heads) * s.head_dim
        attention = s.tokens * (2 * qkv + s.heads * s.head_dim) * s.dtype_bytes
        mlp = s.tokens * 3 * s.inner * s.dtype_bytes
        sampling = s.seqs * s.vocab * (4 * 4 + s.dtype_bytes)
        return stream + max(attention, mlp, sampling)

    def validate(self, config: Any) -> list[Problem]:
        """Every objection to a resolved configuration, all at once. Default: none."""
        return []

    def begin(self) -> None:
        """Begin, on other threads, what `preload` would otherwise spend time on, and return at once: it is called as soon as a
        process that will preload knows its platform, and imports other things meanwhile. Default: nothing."""
        return

    def expect(self, weights: int) -> None:
        """A device opened later will soon be given about `weights` bytes of parameters. Called before
        `preload`, and only where they fit; a platform whose memory takes time to make ready may begin to, on a thread that ends
        by itself, and count what it holds ready as free. It gives back what is not used once the first cache is
        allocated or the device is closed. Default: nothing."""
        return

    def preload(self) -> None:
        """Import what `open` and the device it returns will run (a tensor framework, kernels), so that a process standing by
        starts quickly; touch no driver and no device. Comes before the models are imported, in a process that only serves, so a
        platform may decide how its framework is. Default: nothing."""
        return

    def architectures(self) -> tuple[str, ...]:
        """Names of the devices that `absent` compiles for. Default: none."""
        return ()

    def absent(self, arch: str, cache: Path | None) -> Absent:
        """Make this process compile for such a device, which need not be here. cache: a folder other than the platform's own.
        For a process that does nothing else. Raises thalweg.errors.DeviceError."""
        raise NotImplementedError(f"{self.name}: absent")

    @abstractmethod
    def open(self, place: Place) -> Device:
        """Initialise the device. Raises thalweg.errors.DeviceError with the remedy."""
