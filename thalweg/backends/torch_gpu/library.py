"""The kernels of a GPU, in order of preference: the vendor's where they are installed, Triton's, torch's own operations.

A missing library stays in the list as an entry that refuses, so that the kernel plan says why a slower kernel runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from thalweg.backends.torch_gpu import scaled
from thalweg.backends.torch_gpu.attention import BlockAttention, GatherAttention
from thalweg.backends.torch_gpu.linear import AS_IT_COMES, IN_TILES, no_split_k
from thalweg.backends.torch_native.elementwise import ELEMENTWISE
from thalweg.backends.torch_native.encoder import TorchEncoderAttention
from thalweg.backends.torch_native.indexer import INDEXER
from thalweg.backends.torch_native.recurrence import RECURRENCE
from thalweg.backends.triton_kernels.tiles import refuse_dependent_launch
from thalweg.errors import DeviceError
from thalweg.hal.attention import AttentionBackend, AttnSpec, QKPrologue
from thalweg.hal.kv import KVLayout
from thalweg.hal.op import Kernel
from thalweg.hal.platform import CompiledKernel
from thalweg.hal.step import Array, StepBatch, StepShape

if TYPE_CHECKING:
    from thalweg.backends.torch_gpu.platform import GpuOptions

COMPILED_OPS = (
    "linear", "rms_norm", "add_rms_norm", "rope", "act_and_mul", "resolve_tokens", "history_write", "penalties", "bad_words",
    "logit_bias", "token_mask", "truncate", "draw", "sample", "logprobs", "route", "experts", "lora_rows", "lora_add",
    "lora_experts", "head_linear",
)  # fmt: skip
"""Ops that Triton kernels are expected for. Each gets the reason in the plan where there are none."""


@dataclass(frozen=True, slots=True)
class KernelSet:
    """The kernels and attention of one source."""

    kernels: tuple[Kernel, ...] = ()
    attention: tuple[AttentionBackend, ...] = ()
    absent: tuple[tuple[str, str], ...] = ()
    """(source, why) of those that did not load."""


Source = Callable[[str], KernelSet]
"""Function of the architecture that imports its library. ImportError or RuntimeError, with a reason, if it is missing or does
not fit."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """An optional library: its name in the plan, the ops it would serve, and how to load it."""

    name: str
    ops: tuple[str, ...]
    attention: bool
    load: Source
    lazy: bool = True
    """One with only attention is loaded when a layer asks for it, and counts as not batch-invariant."""


class AheadKernels:
    """Kernels of vendor libraries that the layers of an absent device ask for, to be compiled later.

    cache: the folder of compiled kernels."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.wanted: dict[str, Callable[[], CompiledKernel]] = {}
        self._libraries: set[str] = set()

    def expect(self, library: str) -> None:
        """Layers should want kernels of this library, by its name. If none does, `tasks` has one that says so."""
        self._libraries.add(library)

    def want(self, name: str, make: Callable[[], CompiledKernel]) -> None:
        """make: compiles it into the cache, or finds it there."""
        self.wanted.setdefault(name, make)

    def tasks(self) -> dict[str, Callable[[], CompiledKernel]]:
        unused = (n for n in sorted(self._libraries) if not any(w.startswith(f"{n} ") for w in self.wanted))
        return {**self.wanted, **{n: functools.partial(_refuse_unused, n) for n in unused}}


def _refuse_unused(library: str) -> NoReturn:
    raise RuntimeError(f"no layer of this model is served by {library} with these settings; it requires --no-batch-invariant")


class UnavailableAttention(AttentionBackend):
    """Attention that a library which is not here would offer."""

    batch_invariant = True  # so that it is asked, and says the reason that matters

    def __init__(self, name: str, why: str) -> None:
        self.name, self._why = name, why

    def supports(self, spec: AttnSpec) -> str | None:
        return self._why

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        _absent(self._why)

    def metadata(self, batch: StepBatch, group: int, spec: AttnSpec, shape: StepShape | None) -> Mapping[str, Any]:
        _absent(self._why)

    def attend(
        self, q: Array, k: Array, v: Array, kv: Array, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Array | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        _absent(self._why)


class LazyAttention(AttentionBackend):
    """A library's attention, not batch-invariant. It is loaded when first asked something: an import lasts seconds, and an
    unused one costs nothing."""

    def __init__(self, vendor: Vendor, arch: str) -> None:
        self.name, self._vendor, self._arch = vendor.name, vendor, arch
        self._loaded: AttentionBackend | None = None

    @property
    def backend(self) -> AttentionBackend:
        if self._loaded is None:
            try:
                (self._loaded,) = self._vendor.load(self._arch).attention
            except LOADING as e:
                self._loaded = UnavailableAttention(self.name, _reason(e))
        return self._loaded

    def supports(self, spec: AttnSpec) -> str | None:
        return self.backend.supports(spec)

    def refuses_blocks(self, block_tokens: int) -> str | None:
        return self.backend.refuses_blocks(block_tokens)

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        return self.backend.layout(spec, block_tokens)

    def metadata(self, batch: StepBatch, group: int, spec: AttnSpec, shape: StepShape | None) -> Mapping[str, Any]:
        return self.backend.metadata(batch, group, spec, shape)

    def attend(
        self, q: Array, k: Array, v: Array, kv: Array, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Array | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        return self.backend.attend(q, k, v, kv, batch, group, spec, sinks)

    def fuses(self, spec: AttnSpec, prologue: QKPrologue) -> str | None:
        return self.backend.fuses(spec, prologue)

    def attend_fused(
        self, q: Array, k: Array, v: Array, kv: Array, batch: StepBatch, group: int, spec: AttnSpec, prologue: QKPrologue,
        cos_sin: Array, weights: tuple[Array, Array] | None = None, sinks: Array | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        return self.backend.attend_fused(q, k, v, kv, batch, group, spec, prologue, cos_sin, weights, sinks)


LOADING = (ImportError, RuntimeError, OSError)
"""Errors that loading a library may raise because it is not there or does not fit."""


def _reason(e: Exception) -> str:
    return f"{e}".splitlines()[0] if f"{e}" else type(e).__name__


def _absent(why: str) -> NoReturn:
    raise RuntimeError(f"this was refused: {why}")


def missing(op: str, name: str, why: str) -> Kernel:
    """A kernel that refuses every use."""

    def run(*args: Any, **static: Any) -> NoReturn:
        _absent(why)

    def supports(spec: Mapping[str, Any]) -> str | None:
        return why

    return Kernel(op, name, run, supports)


def triton(
    arch: str, row_tiles: bool = True, scaled_codes: bool = False, dependent_launch: bool = False,
    joined_attention: bool = False,
) -> KernelSet:  # fmt: skip
    """The shared Triton library. Its settings: see `GpuOptions`."""
    from thalweg.backends.triton_kernels import library

    try:
        result = library(arch, row_tiles, scaled_codes, dependent_launch, joined_attention)
    except ImportError as e:
        raise ImportError(f"{e.name or e} is not installed") from e
    except ValueError as e:
        raise RuntimeError(str(e)) from e
    return KernelSet(result.kernels, result.attention)


def triton_with(options: GpuOptions, arch: str) -> Source:
    """`triton` with these options. DeviceError for one that the architecture does not have."""
    if options.flash_attn_4 and not arch.startswith("sm_"):
        raise DeviceError(f"additional_config: flash_attn_4 is for NVIDIA GPUs, not {arch}; leave it out")
    if options.dependent_launch and (why := refuse_dependent_launch(arch)):
        raise DeviceError(f"additional_config: dependent_launch {why}; leave it out")
    return functools.partial(
        triton, row_tiles=options.row_tiles, scaled_codes=options.scaled_codes, dependent_launch=options.dependent_launch,
        joined_attention=options.joined_attention,
    )  # fmt: skip


def matrix_library(arch: str, unshown: bool = False) -> KernelSet:
    """The vendor's, as torch calls it: first where any order of sums will do. unshown: see `no_split_k`."""
    nvidia = (no_split_k(arch, unshown),) if arch.startswith("sm_") else ()
    rounded = scaled.kernels(arch, scaled.helpers(arch))
    return KernelSet((AS_IT_COMES, *nvidia, *(k for k in rounded if k not in _slower_than_triton(arch, rounded))))


def _slower_than_triton(arch: str, kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """Those that serve only without Triton. An H200 took 1.1 to 3 times as long for integer matmuls by this library, which
    leaves the scales to launches after it, in all but one of 30 sizes."""
    return tuple(k for k in kernels if arch.startswith("sm_") and k.name == "torch-int8")


JOINED_OPS = ("rms_norm_linear", "act_and_mul_linear")
"""Ops that round the inputs of a product as they make them."""


def assemble(
    arch: str, vendors: Sequence[Vendor], compiled: Source = triton, *, unshown: bool = False, fused_rounding: bool = True
) -> KernelSet:
    """Every kernel for this architecture, best first. A library that fails to load costs its kernels, not the start.
    DeviceError: an option asks for it. unshown:
    see `no_split_k`. fused_rounding: see `GpuOptions`."""
    sources = [
        *vendors,
        Vendor("torch", (), False, functools.partial(matrix_library, unshown=unshown)),
        Vendor("triton", COMPILED_OPS, True, compiled),
    ]
    kernels: list[Kernel] = []
    attention: list[AttentionBackend] = []
    absent: list[tuple[str, str]] = []
    for source in sources:
        if source.attention and not source.ops and source.lazy:
            attention.append(LazyAttention(source, arch))
            continue
        try:
            parts = source.load(arch)
        except DeviceError:  # an option that cannot be honoured
            raise
        except LOADING as e:
            why = _reason(e)
            absent.append((source.name, why))
            parts = KernelSet(
                tuple(missing(op, source.name, why) for op in source.ops),
                (UnavailableAttention(source.name, why),) if source.attention else (),
            )
        kernels += parts.kernels
        attention += parts.attention
    attends = (*attention, GatherAttention(), TorchEncoderAttention(), BlockAttention())
    kernels = [k for k in kernels if fused_rounding or k.op not in JOINED_OPS]
    kernels += _slower_than_triton(arch, scaled.kernels(arch, scaled.helpers(arch)))
    return KernelSet((*kernels, IN_TILES, *ELEMENTWISE, *RECURRENCE, *INDEXER), attends, tuple(absent))
