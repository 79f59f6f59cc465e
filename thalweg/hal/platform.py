"""A backend is a `Platform` (facts and rules, immutable), which opens a `Device` (hal/device.py).

A first backend implements probe, defaults and open. Everything else has a default here.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from thalweg.errors import DeviceError
from thalweg.hal import HAL_API
from thalweg.hal.device import Device, DeviceInfo
from thalweg.hal.step import StepShape
from thalweg.hal.weights import DENSE, WeightFormat

RENDEZVOUS = "rendezvous"
"""Key of Place.environment: where the ranks meet. "file:///path" is a folder that only this run uses, "tcp://host:port" an
address that rank 0 listens at."""

MEETING = "meeting"
"""Key of Place.environment: a path of this machine that exists while the ranks may still meet. Optional."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Can this machine run the platform? score 0 = no. `--device auto` selects the highest. reason: one sentence,
    either way."""

    score: int
    reason: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts of a model that a platform may use when it chooses defaults."""

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
    longest: int = 0
    """Tokens that positions can be stretched to, where a user asks for more than `max_len`. 0: no more."""
    prompt_tokens: int = 0
    """Tokens behind the vocabulary, which only prompts contain."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Sizes that bound the temporaries of one step, for `Platform.workspace`."""

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
    """Kernels with rows that depend on the rest of the batch are ruled out, and need no room."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The platform's choices where the user made none. None = the global default."""

    dtype: str | None = None
    block_tokens: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_bytes: int | None = None
    """Fixed cache size. None = the rest of the memory fraction after weights and workspace."""
    pipeline_depth: int | None = None
    """Steps launched before the oldest is read. 1 where compile() runs eagerly on the calling thread."""
    buckets: tuple[StepShape, ...] = ()
    """Shapes to compile. Empty = executables take any shape."""
    unpadded: bool = False
    """A batch that no bucket holds runs as it is, by an executable compiled for any shape. False: it is an error, because
    the buckets are meant to hold every batch."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper limits of every step of this engine, for `Platform.buckets`: the resolved configuration."""

    tokens: int
    seqs: int
    max_len: int
    block_tokens: int
    drafts: int = 0
    """Of a sequence. Steps that verify some have equally many of every sequence where that costs little: 1, 3, 7 and so on, or
    so many."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One objection to a configuration, in words: the field, the problem and the fix."""

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
    stages: int = 1
    """Pipeline stages of the world. Ranks of a stage have consecutive numbers."""

    @property
    def stage(self) -> int:
        """This rank's."""
        return self.rank * self.stages // self.world

    @property
    def gives_results(self) -> bool:
        """Is it the first rank of the last stage?"""
        return self.rank == self.world - self.tensor_ranks

    @property
    def tensor_ranks(self) -> int:
        """Processes of each stage."""
        return self.world // self.stages

    @property
    def tensor_rank(self) -> int:
        """This rank's number in its stage."""
        return self.rank % self.tensor_ranks


@dataclass(frozen=True, slots=True)
class Topology:
    """Processes to start: 8 x 1 device on one kind of machine, 1 x 8 on another."""

    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """One kernel. cached: it was there already."""

    seconds: float
    cached: bool


class CrossCompiler(ABC):
    """A device absent from this machine, for which kernels are compiled all the same. Steps on a device that `platform` opens
    compute nothing. The kernels they would compile are noted."""

    platform: Platform

    @property
    @abstractmethod
    def cache(self) -> Path:
        """The folder in which processes on a real device will look."""

    @abstractmethod
    def kernels(self) -> list[tuple[str, str]]:
        """(key, name) of the kernels that steps asked for so far, in that order. Keys are the same in every process."""

    @abstractmethod
    def compile(self, key: str) -> CompiledKernel:
        """Into the cache. Raises the compiler's error, or an error that the device cannot run it."""


class Platform(ABC):
    """One hardware family with its knobs. Immutable. Constructing it touches no driver and imports no framework."""

    name: str
    api: int = HAL_API
    options: Any = None
    """The platform's own knobs, an instance of a frozen dataclass: its defaults, or those given to `with_options`. None: it has
    none. Every method answers for these knobs."""
    runs_models: bool = True
    """False: compile() ignores step and params, so the worker builds no model and loads no tensor framework (null)."""

    supports_ranks: bool = False
    """`open` of a place in a world of several opens a communicator with the others."""

    ray_resource: str = "CPU"
    """Ray's name for what a rank needs one of."""

    variables: tuple[str, ...] = ()
    """How the names of environment variables begin that its libraries read, and that are alike for all ranks."""

    supports_stages: bool = False
    """`open` of a place in a world of several stages opens `Device.stages`."""

    shares_device: bool = False
    """True: several processes may open its device at once, each with a part of its threads."""

    def with_options(self, options: Any) -> Self:
        """This platform with the user's knobs, of the class of `options`. None: itself. A platform with knobs that may be wrong
        rejects them here: thalweg.errors.DeviceError with the remedy."""
        if options is None:
            return self
        if self.options is None or not isinstance(options, type(self.options)):
            takes = f"takes {type(self.options).__name__}" if self.options is not None else "has no options"
            raise DeviceError(f"device: {self.name} {takes}, not {type(options).__name__}")
        result = copy.copy(self)
        result.options = options
        return result

    @abstractmethod
    def probe(self) -> Probe:
        """No driver initialisation, no framework import."""

    def topology(self, want: Parallel) -> Topology:
        """Default: one process per device."""
        return Topology(tuple(Place(rank=r, world=want.world, devices=(r,)) for r in range(want.world)))

    @abstractmethod
    def defaults(self, model: ModelInfo, device: DeviceInfo) -> Defaults: ...

    def buckets(self, defaults: Defaults, limits: Limits) -> tuple[StepShape, ...]:
        """Shapes to compile for, once every size is settled: some shape must hold every step within the limits.
        Default: those of `defaults`."""
        return defaults.buckets

    def list_captured(self, buckets: Sequence[StepShape]) -> Sequence[StepShape]:
        """Of `buckets`: those whose steps are captured before the first request, for the plan of a start. Default: none."""
        return ()

    def describe(self) -> DeviceInfo | None:
        """The device, as far as known without opening it or loading a framework, for the planning of memory. Default: None,
        unknown until it is opened."""
        return None

    def unplannable_reason(self) -> str:
        """Why `describe` returned None, and the remedy. Default: the reason of `probe`."""
        return self.probe().reason

    def packs(self, dtype: str, format: WeightFormat = DENSE) -> bool:
        """Do this platform's kernels keep their own copy of the matrices they multiply by, of dtype or in codes of a format?
        Then an embedding tied to the output matrix is in memory twice. Default: no."""
        return False

    def dense_share(self, dtype: str) -> float:
        """Bytes in which this platform's kernels hold a byte of the dense matrices that they multiply, of dtype. Default: 1."""
        return 1.0

    def quantised_bytes(self, format: WeightFormat, outputs: int, inputs: int) -> int:
        """Bytes in which this platform's kernels hold a quantised matrix. Default: those of its canonical form."""
        return format.bytes(outputs, inputs)

    def workspace(self, s: StepSizes) -> int:
        """Temporaries of the largest step in bytes, an estimate, for planning. Default: that of an eager step, where
        each layer's temporaries are freed before the next one's are made. It is the residual stream, and the largest need of
        attention, the MLP and sampling."""
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
        """Begin slow work of `preload` on other threads, and return at once. Called as soon as a process that will preload
        knows its platform, while it imports other things. Default: nothing."""
        return

    def expect(self, weights: int) -> None:
        """A device opened later will soon be given about `weights` bytes of parameters. Called before `preload`, and only where
        they fit. A platform may make slow memory ready ahead, on a thread that ends by itself, and count ready memory as free.
        It returns unused memory once the first cache is allocated or the device is closed, or on a call with 0 bytes. Default:
        nothing."""
        return

    def preload(self) -> None:
        """Import everything that `open` and the device it returns will run (a tensor framework, kernels), so that a standby
        process starts quickly. Touch no driver and no device. Comes before the models are imported, in a process that only
        serves, so a platform may configure its framework. Default: nothing."""
        return

    def architectures(self) -> tuple[str, ...]:
        """Names of the devices that `absent` compiles for. Default: none."""
        return ()

    def absent(self, arch: str, cache: Path | None) -> CrossCompiler:
        """Make this process compile for such a device, which need not be here. cache: a folder other than the platform's own.
        For a process that does nothing else. Raises thalweg.errors.DeviceError."""
        raise NotImplementedError(f"{self.name}: absent")

    @abstractmethod
    def open(self, place: Place) -> Device:
        """Initialise the device, and where `place.world` is above 1, wait for the other ranks. Raises
        thalweg.errors.DeviceError with the remedy."""
