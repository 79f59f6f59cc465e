"""The CPU device: threads, kernels in order of preference, attention in order of preference."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from thalweg.backends.cpu import KEPT_BLOCK, CpuPlatform, bookkeeping
from thalweg.backends.cpu.native import NativeLibrary, NoLibraryError, alloc_zeros, open_library, settle, waiting
from thalweg.backends.cpu.native.peak import peak, read_rate
from thalweg.backends.cpu.native.weight_cache import PackedWeightCache
from thalweg.backends.cpu.recording import Arena, RecordingExecutable, advancing, opaque
from thalweg.backends.eager import EagerDevice, StepThread
from thalweg.backends.host import cores
from thalweg.backends.torch_native import ATTENTION, KERNELS
from thalweg.errors import DeviceError
from thalweg.hal.attention import AttentionBackend
from thalweg.hal.comm import Communicator, Solo, StageLinks
from thalweg.hal.device import Background, DeviceInfo, Executable, Memory
from thalweg.hal.kv import KVLayout
from thalweg.hal.op import Kernel
from thalweg.hal.platform import RENDEZVOUS, Place
from thalweg.hal.step import Features, Params, StateBox, Step, StepShape
from thalweg.hal.times import Times

PAGE, HUGE = 4 << 10, 2 << 20
"""Bytes of a page, and of a huge one."""
POPULATED = 512 << 20
"""Upper bound of the bytes of all caches that are populated ahead of their use."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's malloc.h."""


def _keep_freed_memory() -> None:
    """A step's temporaries are megabytes, freed and needed again at once. The allocator of glibc would give each back
    to the system, and new pages fault again. Here it is set to keep blocks of up to 32 MiB (the most it accepts).
    Weights and caches are larger and unaffected. Elsewhere this does nothing."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, KEPT_BLOCK)
        libc.mallopt(M_TRIM_THRESHOLD, 512 << 20)


class CpuDevice(EagerDevice):
    """The eager device, with caches on huge pages, and loading's leftovers given back."""

    def __init__(
        self, info: DeviceInfo, kernels: Sequence[Kernel], attention: Sequence[AttentionBackend], library: NativeLibrary | None,
        record: bool = True, comm: Communicator | None = None, stages: StageLinks | None = None,
    ) -> None:  # fmt: skip
        """record: with a library, decode steps are recorded and replayed."""
        super().__init__(info, kernels, attention)
        self.comm = comm or Solo()
        self.stages = stages or StageLinks()
        self._library = library
        self._arena = Arena(library) if library and record else None
        self._recording: weakref.WeakSet[RecordingExecutable] = weakref.WeakSet()
        self._populated: dict[int, int] = {}
        """Caches by address: number of bytes populated from the start."""

    def background(self) -> Background | None:
        """With separate threads: a library's threads serve one caller at a time. Weights are packed for both alike."""
        if self._library is None:
            return super().background()
        opened: list[NativeLibrary] = []
        threads, level = self._library.threads, self._library.level
        self._worker = StepThread(lambda: opened.append(open_library(threads, level)))  # its threads inherit the priority
        (library,) = opened
        library.kept, library.compresses = self._library.kept, self._library.compresses
        return Background(*_made_of(library), self._worker.compile)

    def memory(self) -> Memory:
        now = super().memory()
        return Memory(now.total, now.free + waiting())

    def memory_used(self) -> int:
        return super().memory_used() - waiting()

    def blank(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor | None:
        """Where packed weights lie too, if it is large enough for that."""
        kind = getattr(torch, dtype)
        size = math.prod(shape) * kind.itemsize
        if self._library is None or size < HUGE:
            return None
        return torch.frombuffer(alloc_zeros(self._library, size), dtype=kind).view(shape)

    def alloc_kv(self, layout: KVLayout, blocks: int) -> torch.Tensor:
        settle()  # the weights are there
        if self._library is None or not layout.bytes_per_block:
            return super().alloc_kv(layout, blocks)
        held = alloc_zeros(self._library, blocks * layout.bytes_per_block)
        return torch.frombuffer(held, dtype=getattr(torch, layout.dtype)).view(blocks, *layout.shape)

    def alloc_caches(self, layouts: Sequence[KVLayout], blocks: Sequence[int]) -> list[torch.Tensor]:
        """Blocks of one number are contiguous over all layers. The system clears a huge page when it is first written. A first
        prompt thus costs about as much memory as it fills, and not one page and a part of one more from each layer."""
        alike: dict[tuple[KVLayout, int], list[int]] = {}
        for i, key in enumerate(zip(layouts, blocks, strict=True)):
            alike.setdefault(key, []).append(i)
        result: dict[int, torch.Tensor] = {}
        for (layout, n), layers in alike.items():
            if self._library is None or not layout.apart or not layout.bytes_per_block or len(layers) == 1:
                result |= {i: self.alloc_kv(layout, n) for i in layers}
            else:
                result |= dict(zip(layers, self._side_by_side(self._library, layout, n, len(layers)), strict=True))
        return [result[i] for i in range(len(layouts))]

    def _side_by_side(self, library: NativeLibrary, layout: KVLayout, blocks: int, layers: int) -> list[torch.Tensor]:
        settle()  # the weights are there
        apart = layers * layout.bytes_per_block
        if apart % (2 * PAGE) == 0 and apart >= 256 * PAGE:
            apart += PAGE  # or a layer's blocks would take each other's places in a processor's caches
        whole = torch.frombuffer(alloc_zeros(library, blocks * apart), dtype=getattr(torch, layout.dtype))
        each = torch.empty(layout.shape, device="meta")
        numbers, strides = each.numel(), (apart // whole.element_size(), *each.stride())
        return [whole.as_strided((blocks, *layout.shape), strides, i * numbers) for i in range(layers)]

    def populate(self, caches: Sequence[tuple[torch.Tensor, range]]) -> bool:
        """A huge page a call. The system clears a page when it is first written: 0.1 to 2 seconds a GiB."""
        if self._library is None:
            return False
        share: dict[int, int] = collections.Counter(kv.untyped_storage().data_ptr() for kv, _ in caches)
        for kv, blocks in caches:
            start, end = kv.untyped_storage().data_ptr(), kv.untyped_storage().nbytes()
            block = kv.stride(0) * kv.element_size()
            first = max(blocks.start * block // HUGE * HUGE, self._populated.get(start, 0))
            last = min(blocks.stop * block, blocks.start * block + POPULATED * share[start] // len(caches), end)
            if first < last:
                size = min(HUGE, end - first)
                self._library.populate(start + first, size)
                self._populated[start] = first + size
                return True
        return False

    def compile(
        self, step: Step, params: Params, state: StateBox, shape: StepShape | None, features: Features | None
    ) -> Executable:
        """The holes that packing left between the weights go back to the system: nothing of a step is as large."""
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        if self._library is not None and self._library.kept is not None:
            self._library.kept.tell()
        if self._library is None or self._arena is None:
            return super().compile(step, params, state, shape, features)
        result = RecordingExecutable(step, params, state, self._library, self._arena, self.comm)
        self._recording.add(result)
        return result

    def peak(self, dtype: str) -> float | None:
        return peak(self._library, dtype) if self._library else None

    def read_rate(self) -> float | None:
        return read_rate(self._library) if self._library else None

    @contextlib.contextmanager
    def record_times(self) -> Iterator[Times | None]:
        if self._library is None:
            yield None
            return
        self._library.times = Times()
        try:
            yield self._library.times
        finally:
            self._library.times = None

    @property
    def regroups(self) -> bool:
        return self.comm.regroups and self.stages.regroups

    def regroup(self, place: Place) -> None:
        self.stages.regroup(place)  # in the order of `open_device`
        self.comm.regroup(place)
        for each in self._recording:
            each.forget()

    def close(self) -> None:
        settle()
        self.stages.close()
        self.comm.close()
        super().close()


def open_device(
    threads: int, isa: str = "", graphs: bool = True, packed_weights: str = "", compress_weights: bool | None = None,
    place: Place | None = None,
) -> CpuDevice:  # fmt: skip
    """threads: 0 = this rank's share of the cores for this process, unless torch was set to fewer before. isa, graphs,
    packed_weights, compress_weights: see CpuOptions."""
    reported, ranks = _torch_threads(), place.world if place else 1
    threads = threads or max(1, min(cores() // ranks, reported))
    _keep_freed_memory()
    library, missing = _library(threads, isa)
    # Two pools would fight for the cores: between products, torch's threads wait by spinning. With compiled kernels there is
    # little left for torch, and one thread does it.
    torch.set_num_threads(1 if library else threads)
    kernels_in = f"compiled, {library.level}" if library else missing
    notes = {"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability(), "kernels": kernels_in}
    info = replace(CpuPlatform().describe(), cores=threads, notes=notes)
    if library is None and packed_weights:
        raise DeviceError(f"packed_weights: nothing is packed without compiled kernels ({missing}); omit it")
    compresses = compress_weights is not False and library is not None and library.compress_weights()
    if compress_weights and not compresses:
        raise DeviceError(f"compress_weights: no kernel reads such weights here ({kernels_in}); omit it")
    if library is not None and packed_weights:
        library.kept = _open_packed_weights(library, packed_weights)
    stages = _open_stages(place, library, missing) if place is not None and place.stages > 1 else None
    comm = _open_communicator(place, library) if place is not None and place.tensor_ranks > 1 else None
    if library is None:
        return CpuDevice(info, (_absent(missing), *bookkeeping.KERNELS, *KERNELS), ATTENTION, None, comm=comm)
    return CpuDevice(info, *_made_of(library), library, graphs, comm, stages)


def _open_communicator(place: Place, library: NativeLibrary | None) -> Communicator:
    if library is None or place.environment.get(RENDEZVOUS, "").startswith("tcp://"):  # ranks of several machines
        from thalweg.backends.torch_comm import TorchCommunicator

        return TorchCommunicator("gloo", place)
    from thalweg.backends.cpu.shm import ShmCommunicator

    first = place.stage * place.tensor_ranks
    return ShmCommunicator(library, place, range(first, first + place.tensor_ranks))


def _open_stages(place: Place, library: NativeLibrary | None, missing: str) -> StageLinks:
    """Before the ranks of the stage are joined: recorded steps report failures of the communicator that is opened last."""
    if library is None:  # and so no memory that ranks share
        raise DeviceError(f"pipeline_parallel_size: stages exchange by compiled code ({missing}); leave it at 1")
    from thalweg.backends.cpu.shm import ShmCommunicator

    def join(earlier: int) -> Communicator:
        if not 0 <= earlier < place.world - place.tensor_ranks:
            return Solo()
        return ShmCommunicator(library, place, (earlier, earlier + place.tensor_ranks))

    return StageLinks(place.stage, place.stages, join(place.rank - place.tensor_ranks), join(place.rank))


def _made_of(library: NativeLibrary) -> tuple[Sequence[Kernel], Sequence[AttentionBackend]]:
    """Kernels and attention that run on the threads of this library."""
    from thalweg.backends.cpu.native import (
        attention,
        experts,
        gates,
        heads,
        linear,
        lora,
        recurrence,
        rows,
        sampling,
        sparse,
        token_attention,
    )

    compiled = (linear, rows, sampling, experts, heads, lora, gates, sparse)
    native = [k for part in compiled for k in part.kernels(library)]
    recurrent = recurrence.kernels(library)
    native += [advancing(k, library, ADVANCES[k.op]) for k in recurrent if k.op not in PARTLY_TORCH]
    others = (*(k for k in recurrent if k.op in PARTLY_TORCH), *bookkeeping.KERNELS, *KERNELS)
    torch_kernels = [_make_recordable(k, library) for k in others]
    own = (attention.NativeAttention, attention.NativeEncoderAttention, token_attention.NativeTokenAttention)
    attending = (*(backend(library) for backend in own), *ATTENTION)
    return (*native, *torch_kernels), attending


ADVANCES = {
    "causal_conv": 2, "delta_rule": 5, "channel_delta_rule": 5, "selective_scan": 8, "ssd_scan": 7, "linear_scan": 2,
    "decaying_average": 4, "general_delta_rule": 6, "matrix_lstm": 5,
}  # fmt: skip
"""Ops that go on from a state in place, and which argument holds it."""


PARTLY_TORCH = ("ssd_scan",)
"""Compiled kernels with operations of torch, which are faster as one call of a recorded step."""


def _make_recordable(kernel: Kernel, library: NativeLibrary) -> Kernel:
    """A kernel of torch's own operations in the form that recording needs."""
    whole = opaque(kernel, library)
    return advancing(whole, library, ADVANCES[kernel.op]) if kernel.op in ADVANCES else whole


@functools.cache
def _torch_threads() -> int:
    """Threads torch would use, as it was before a device was opened."""
    return torch.get_num_threads()


def _library(threads: int, isa: str) -> tuple[NativeLibrary | None, str]:
    """The compiled kernels, or why there are none."""
    try:
        return open_library(threads, isa), ""
    except NoLibraryError as e:
        return None, f"no compiled kernels: {e}"
    except ValueError as e:
        raise DeviceError(str(e)) from None


def _open_packed_weights(library: NativeLibrary, folder: str) -> PackedWeightCache:
    try:
        return PackedWeightCache(library, Path(folder).expanduser().absolute())
    except OSError as e:
        raise DeviceError(f"packed_weights: {folder!r} cannot be used as a folder: {e.strerror}; name another") from None


def _absent(reason: str) -> Kernel:
    """Stands where the compiled kernels would, so that the kernel plan tells why they are not there."""
    return Kernel("linear", "native", _refuse, lambda spec: reason, batch_invariant=True)


def _refuse(*args: object, **static: object) -> object:
    raise RuntimeError("a kernel that refuses every use was run")
