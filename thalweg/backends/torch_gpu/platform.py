"""Shared code of GPU platforms before a device is opened: probing, defaults, options, and a sentence on any missing part.

Imports no framework: torch's version file says which accelerators it was built for.
"""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, get_args

from thalweg.backends.host import ROOT
from thalweg.backends.torch_gpu.arch import (
    BLOCK_TOKENS,
    GIB,
    Arch,
    Card,
    arch_of,
    blocks,
    buckets,
    compiled_for,
    decode_shapes,
    defaults,
    mixed_shapes,
    verifying,
)
from thalweg.errors import DeviceError
from thalweg.hal.device import Device, DeviceInfo
from thalweg.hal.platform import (
    CrossCompiler,
    Defaults,
    Limits,
    ModelInfo,
    Parallel,
    Place,
    Platform,
    Probe,
    StepSizes,
    Topology,
)
from thalweg.hal.step import StepShape
from thalweg.hal.weights import DENSE, WeightFormat

if TYPE_CHECKING:
    from thalweg.backends.torch_gpu.library import AheadKernels, Vendor
    from thalweg.backends.torch_gpu.runtime import Runtime
    from thalweg.hal.comm import Communicator

logger = logging.getLogger(__name__)

DRIVER_BYTES = 1 << 29
"""Bytes of a driver's context and compiled kernels, about."""
GRAPH_BYTES = 1 << 22
"""Bytes a driver keeps of one captured step, about (some hundreds of kernels, not measured yet)."""
GRAPHS_BESIDE = 8
"""Captured steps in addition to one per bucket: of requests that ask for logprobs, penalties, biases."""
SPAN = 512
PARTS_BYTES = 1 << 28
"""Attention over long tables computes parts of this many keys and joins them. The parts of a step take at most this
much (`triton_kernels.attention`)."""
OLDEST_TORCH = (2, 11)
Prepare = Literal["graphs", "kernels", "none"]


MOST_READERS = 64
"""Each holds 16 MiB of pinned memory."""


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """Knobs of a GPU platform."""

    device: int = 0
    """Which of the GPUs that this process sees, from 0."""
    graphs: bool = True
    """Capture decoding steps. False: launch every kernel each time, for debugging."""
    graph_sizes: tuple[int, ...] | None = None
    """Sequences of the captured decoding steps. None: a few dozen sizes up to max_num_seqs."""
    largest_graph: int | None = None
    """Sequences of the largest. Steps of more run as they are written."""
    mixed_graph: int = 512
    """Tokens of the largest captured step with prompts. 0: none, they run as they are written."""
    prepare: Prepare = "graphs"
    """Work done before the first request. "graphs": kernels compiled and decoding steps captured. "kernels": only kernels, for
    a shorter start, and graphs are captured while serving. "none": nothing, and the first requests wait for compilers."""
    readers: int = 8
    """Threads that read weights from safetensors files, past the host's memory. 0: they are read one by one, by mapping."""
    row_tiles: bool = True
    """Triton's dense products and exact attention over prompts take tiles by the number of rows, which no device has
    measured. False: one tile for any number, as before there were these."""
    scaled_codes: bool = False
    """4-bit integers in groups of 32 or 64 are multiplied by their scales before the product, and rounded, as in the op.
    Prompts have larger tiles then. Steps of few sequences do more work. No device has measured it."""
    dependent_launch: bool = False
    """Triton's launches of a layer start before the launch ahead of them ends, and wait for it on the device. NVIDIA, sm_90 and
    later. No device has measured it."""
    joined_attention: bool = False
    """In a decode, the last of Triton's programs of a sequence to finish joins the results of all, in place of a launch. The
    bits are the same. No device has measured it."""
    fused_rounding: bool = True
    """Norms and gates write codes of 8 bits and the scales of rows for layers with rounded inputs, in place of a launch. The
    bits are the same. No device has measured it. False: separate launches."""
    flash_attn_4: bool = False
    """Attention by FlashAttention-4, from kernels that `thalweg compile` made with the same option. NVIDIA, sm_90, sm_100 and
    sm_103. No device has run it."""
    unshown_products: bool = False
    """Take cuBLASLt without split sums, and FlashAttention-4, for batch-invariant where that has not been shown: for the test
    that shows it."""


@dataclass(frozen=True, slots=True)
class GpuProperties:
    """The driver's properties of one device."""

    name: str
    arch: str
    memory_bytes: int
    free_bytes: int
    cores: int
    """Multiprocessors, compute units or cores, as the vendor counts."""
    notes: dict[str, str]


class Driver(Protocol):
    """The vendor's driver through torch. Tests put a made-up one in its place."""

    def why_not(self) -> str | None:
        """None, or why torch cannot use it."""
        ...

    def count(self) -> int: ...

    def look(self, index: int) -> GpuProperties: ...

    def runtime(self, index: int) -> Runtime: ...

    def communicator(self, place: Place) -> Communicator:
        """Of more than one rank."""
        ...


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """Facts of torch's own version file."""

    version: str
    built: dict[str, str]
    """{"cuda": "13.0"}: the accelerators it is built for, with their versions. Empty = only the processor."""

    @property
    def words(self) -> str:
        kinds = " and ".join(f"{TITLES[k]} {v}" for k, v in self.built.items())
        return f"torch {self.version} is built for {kinds or 'the CPU alone'}"


TITLES = {"cuda": "CUDA", "hip": "ROCm", "xpu": "XPU"}


def torch_build(folder: Path | None = None) -> TorchBuild | None:
    """None: torch is not installed. Reads `torch/version.py` as text. Imports nothing."""
    if folder is None:
        spec = find_spec("torch")
        if spec is None or spec.origin is None:
            return None
        folder = Path(spec.origin).parent
    try:
        text = (folder / "version.py").read_text()
    except OSError:
        return None
    fields = dict(re.findall(r"^(\w+)(?:: [^=]*)? = '([^']*)'", text, re.M))
    return TorchBuild(fields.get("__version__", "?"), {k: fields[k] for k in TITLES if k in fields})


class GpuPlatform(Platform):
    """One vendor's GPUs. A subclass adds facts: how to find cards, the package to install, the vendor's kernels."""

    supports_ranks = True
    ray_resource = "GPU"
    variables = ("NCCL_", "RCCL_", "CCL_", "TRITON_", "UCX_")
    options: GpuOptions = GpuOptions()
    hardware: str
    """"NVIDIA GPU"."""
    build: str
    """Key of TITLES: the build of torch needed."""
    wheels: str
    """The index that has such a torch, for the remedy."""
    score = 100
    absentees: tuple[str, ...] = ()
    """Beginnings of the architectures for which a compiler needs no device."""

    def __init__(self, root: Path = ROOT, torch_folder: Path | None = None, driver: Driver | None = None) -> None:
        """root, torch_folder, driver: made-up machines, in tests."""
        self._root, self._torch_folder, self._given = root, torch_folder, driver

    def with_options(self, options: Any) -> Self:
        result = super().with_options(options)
        if result.options.prepare not in get_args(Prepare):
            raise DeviceError(f"device: prepare is one of {', '.join(get_args(Prepare))}, not {result.options.prepare!r}")
        if not 0 <= result.options.readers <= MOST_READERS:
            raise DeviceError(f"device: readers: {result.options.readers} threads cannot read weights: 0 to {MOST_READERS}")
        if result.options.device < 0:
            raise DeviceError(f"device: {result.options.device} is not the number of a GPU; they count from 0")
        return result

    @abstractmethod
    def cards(self) -> Sequence[Card]:
        """GPUs with a loaded driver, as the file system shows them."""

    @abstractmethod
    def unseen(self) -> str:
        """Why there are no cards, in words: nothing on the bus, or a card without its driver."""

    def driver(self) -> Driver:
        """The real one, or the made-up one."""
        if self._given is not None:
            return self._given
        from thalweg.backends.torch_gpu.driver import TorchDriver

        return TorchDriver(self.build)

    def vendors(self, ahead: AheadKernels | None = None) -> tuple[Vendor, ...]:
        """Optional kernel libraries, best first. ahead: collects kernels to compile, for an absent device."""
        return ()

    def probe(self) -> Probe:
        problem, cards = self._problem()
        if problem:
            return Probe(0, problem)
        build = torch_build(self._torch_folder)
        assert build is not None
        return Probe(self.score, f"{_list(cards)}; {build.words}")

    def _problem(self) -> tuple[str, Sequence[Card]]:
        """The obstacle between this machine and the platform, as far as files show. "" = none."""
        cards = self.cards()
        if not cards:
            return self.unseen(), cards
        found, remedy = f"{_list(cards)} found", f"pip install torch --index-url {self.wheels}"
        build = torch_build(self._torch_folder)
        if build is None:
            return f"{found}, but torch is not installed; {remedy}", cards
        if self.build not in build.built:
            return f"{found}, but {build.words}, not for {TITLES[self.build]}; {remedy}", cards
        if _numbers(build.version) < OLDEST_TORCH:
            return f"{found}, but torch {build.version} is older than {'.'.join(map(str, OLDEST_TORCH))}; {remedy}", cards
        old = [c for c in cards if c.arch and not arch_of(c.arch).dtypes]
        if len(old) == len(cards):
            return f"{found}, but {too_old(arch_of(old[0].arch))}", cards
        return "", cards

    def describe(self) -> DeviceInfo | None:
        """The first card, where the tables know it."""
        card = next((c for c in self.cards() if c.arch and c.memory_bytes), None)
        return None if card is None else self._info(card.name, card.arch, card.memory_bytes, 0, {})

    def _info(self, name: str, arch: str, memory_bytes: int, cores: int, notes: dict[str, str]) -> DeviceInfo:
        known = arch_of(arch)
        facts = {"arch": arch, "family": known.family, "fp8": known.fp8 or "none", **notes}
        return DeviceInfo(name, self.name, memory_bytes, cores, known.dtypes, facts)

    def defaults(self, model: ModelInfo, device: DeviceInfo) -> Defaults:
        return defaults(arch_of(device.notes["arch"]), device.memory_bytes, model)

    def packs(self, dtype: str, format: WeightFormat = DENSE) -> bool:
        """Products with codes have a separate layout."""
        return format != DENSE

    def buckets(self, defaults: Defaults, limits: Limits) -> tuple[StepShape, ...]:
        return self._buckets(limits.seqs, limits.tokens, blocks(limits.max_len, limits.block_tokens), limits.drafts)

    def list_captured(self, buckets: Sequence[StepShape]) -> Sequence[StepShape]:
        return decode_shapes(buckets) if self.options.graphs and self.options.prepare == "graphs" else ()

    def _buckets(self, seqs: int, tokens: int, wide: int, drafts: int = 0) -> tuple[StepShape, ...]:
        """Decodes, steps that verify drafts, and steps with prompts where those are captured. wide: columns of the widest
        table."""
        o = self.options
        most = min(tokens, o.mixed_graph) if o.graphs else 0
        return (
            *buckets(seqs, wide, o.graph_sizes, o.largest_graph),
            *verifying(seqs, drafts if o.graphs else 0, wide, o.graph_sizes, o.largest_graph),
            *mixed_shapes(seqs, most, wide, o.graph_sizes, o.largest_graph),
        )

    def workspace(self, s: StepSizes) -> int:
        """The largest eager step. Then the largest captured one, as all graphs share a separate pool. Then the driver's memory
        for each, and the tables that eager steps and graphs are given."""
        wide = blocks(s.max_len, BLOCK_TOKENS)
        tables = 2 * s.seqs * wide * 4
        steps = self._temporaries(s) + tables + DRIVER_BYTES
        if not self.options.graphs:
            return steps
        result = self._buckets(s.seqs, s.tokens, wide)
        largest = max(b.tokens for b in result)
        return steps + self._temporaries(replace(s, tokens=largest)) + tables + (len(result) + GRAPHS_BESIDE) * GRAPH_BYTES

    def _temporaries(self, s: StepSizes) -> int:
        parts = s.seqs * s.heads * -(-s.max_len // SPAN) * (s.head_dim + 2) * 4
        return super().workspace(s) + min(PARTS_BYTES, parts)

    def topology(self, want: Parallel) -> Topology:
        return Topology(tuple(Place(rank=r, world=want.world, devices=(r,)) for r in range(want.world)))

    def preload(self) -> None:
        import thalweg.backends.torch_gpu.device
        import thalweg.backends.torch_gpu.driver
        import thalweg.backends.torch_gpu.library  # noqa: F401

    def architectures(self) -> tuple[str, ...]:
        return compiled_for(self.absentees)

    def absent(self, arch: str, cache: Path | None) -> CrossCompiler:
        from thalweg.backends.torch_gpu.cross_compile import GpuCrossCompiler

        return GpuCrossCompiler(self, arch, cache)

    def open(self, place: Place) -> Device:
        """DeviceError names the finding and the package to install or the change to make."""
        options = self.options
        problem, _ = self._problem()
        if problem:
            raise DeviceError(f"device: {self.name}: {problem}")
        from thalweg.backends.torch_gpu.device import GpuDevice
        from thalweg.backends.torch_gpu.library import assemble, triton_with

        driver = self.driver()
        index = options.device if place.world == 1 else place.devices[0]
        seen = self._look(driver, index)
        parts = assemble(
            seen.arch,
            self.vendors(),
            triton_with(options, seen.arch),
            unshown=options.unshown_products,
            fused_rounding=options.fused_rounding,
        )
        for source, why in parts.absent:
            if source == "triton":
                slow = "Triton's kernels are not used, and torch's own operations, which serve in their place, are far slower"
                remedy = f"pip install --force-reinstall torch --index-url {self.wheels}"
                logger.warning("%s: %s: %s; %s, which brings it", self.name, why, slow, remedy)
        comm = driver.communicator(place) if place.world > 1 else None
        info = self._info(seen.name, seen.arch, seen.memory_bytes, seen.cores, seen.notes)
        return GpuDevice(
            info,
            driver.runtime(index),
            parts,
            graphs=options.graphs,
            prepare=options.prepare,
            comm=comm,
            readers=options.readers,
        )

    def _look(self, driver: Driver, index: int) -> GpuProperties:
        why = driver.why_not()
        if why is not None:
            raise DeviceError(f"device: {self.name}: {_list(self.cards())} found, but torch cannot use it: {why}")
        count = driver.count()
        if index >= count:
            raise DeviceError(
                f"device: {self.name}: GPU {index} was asked for and this process sees {count} (numbered from 0); choose "
                "another, or make more visible to it"
            )
        seen = driver.look(index)
        if not arch_of(seen.arch).dtypes:
            raise DeviceError(f"device: {self.name}: {seen.name}: {too_old(arch_of(seen.arch))}")
        if seen.free_bytes < DRIVER_BYTES:
            raise DeviceError(
                f"device: {self.name}: {seen.name} has {seen.free_bytes / GIB:.1f} of {seen.memory_bytes / GIB:.1f} GiB free: "
                "too little to start; end other processes on it, or choose another GPU"
            )
        return seen


def too_old(arch: Arch) -> str:
    if arch.family == "unknown":
        return f"its architecture ({arch.name}) is not one this version knows"
    return f"its architecture ({arch.name}, {arch.family}) is too old: nothing here is built for it; use --device cpu"


def _list(cards: Sequence[Card]) -> str:
    names = [c.name for c in cards]
    return ", ".join(f"{names.count(n)} x {n}" if names.count(n) > 1 else n for n in dict.fromkeys(names))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version.partition("+")[0])[:2])
