"""The CPU device: threads, kernels in order of preference, attention in order of preference."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import replace

import torch

from thalweg.backends.cpu import CpuPlatform
from thalweg.backends.cpu.native import NoLibraryError, open_library
from thalweg.backends.eager import EagerDevice, EagerExecutable
from thalweg.backends.host import cores
from thalweg.backends.torch_native import ATTENTION, KERNELS
from thalweg.errors import DeviceError
from thalweg.hal.attention import AttentionBackend
from thalweg.hal.op import Kernel
from thalweg.hal.step import Features, Params, StateBox, Step, StepShape

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of glibc's malloc.h."""


def _keep_freed_memory() -> None:
    """A step's temporaries are megabytes, freed and wanted again at once. The allocator of glibc would give each back to
    the system and pay for its pages anew; told to keep blocks of up to 32 MiB (the most it accepts), it does not. Weights
    and caches are larger and unaffected. Elsewhere this does nothing."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(M_TRIM_THRESHOLD, 512 << 20)


class CpuDevice(EagerDevice):
    """The eager device, with loading's leftovers given back."""

    def compile(
        self, step: Step, params: Params, state: StateBox, shape: StepShape | None, features: Features | None
    ) -> EagerExecutable:
        """The holes that packing left between the weights go back to the system: nothing of a step is as large."""
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        return super().compile(step, params, state, shape, features)


def open_device(threads: int, isa: str = "") -> CpuDevice:
    """threads: 0 = as many as there are cores for this process, unless torch was told fewer before. isa: see CpuOptions."""
    threads = threads or min(cores(), torch.get_num_threads())
    torch.set_num_threads(threads)
    _keep_freed_memory()
    kernels, attention, said = _native(threads, isa)
    notes = {"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability(), "kernels": said}
    info = replace(CpuPlatform().describe(), cores=threads, notes=notes)
    return CpuDevice(info, (*kernels, *KERNELS), (*attention, *ATTENTION))


def _native(threads: int, isa: str) -> tuple[tuple[Kernel, ...], tuple[AttentionBackend, ...], str]:
    """The compiled kernels, and a word on them. Without a library each op's kernel is there to refuse, with the reason, so
    that the kernel plan tells it."""
    try:
        library = open_library(threads, isa)
    except NoLibraryError as e:
        reason = f"no compiled kernels: {e}"
        return (Kernel("linear", "native", _refused, lambda spec: reason, batch_invariant=True),), (), reason
    except ValueError as e:
        raise DeviceError(str(e)) from None
    from thalweg.backends.cpu.native.attention import NativeAttention
    from thalweg.backends.cpu.native.linear import kernels

    return kernels(library), (NativeAttention(library),), f"compiled, {library.level}"


def _refused(*args: object, **static: object) -> object:
    raise RuntimeError("a kernel that refuses every use was run")
