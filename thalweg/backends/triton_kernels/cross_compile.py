"""Triton for an absent GPU: records kernels that launches would compile, and compiles them into Triton's cache, without
launching.

Triton asks its driver for the target. `CompileOnlyDriver` answers for a device of which only the architecture is known.
Triton itself thus finds the types, constants and alignments of every launch. A process on a real device of that architecture
finds these kernels under the same keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

from thalweg.backends.triton_kernels.tiles import tiles

COMPILERS = {"cuda": "nvidia", "hip": "amd"}
"""Kind of target -> the compiler that Triton must have been built with."""


def target(arch: str) -> GPUTarget:
    """Triton's name of this architecture. ValueError where this Triton does not compile for it without the device."""
    if arch.startswith("sm_"):
        result = GPUTarget("cuda", int(arch[3:]), 32)
    elif arch.startswith("gfx"):
        result = GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)
    else:
        raise ValueError(f"{arch}: its compiler asks the device itself, so nothing can be compiled where there is none")
    if COMPILERS[result.backend] not in backends:
        raise ValueError(f"{arch}: Triton {triton.__version__} is built without the compiler {COMPILERS[result.backend]!r}")
    return result


class CompileOnlyDriver(DriverBase):  # type: ignore[misc]
    """A driver with a device that accepts every launch and does nothing. shared: bytes of shared memory a program may use."""

    def __init__(self, where: GPUTarget, shared: int) -> None:
        super().__init__()
        self._where, self._shared = where, shared
        self.utils = self
        self.launched = 0

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError("nothing is launched")

    def get_current_target(self) -> GPUTarget:
        return self._where

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        return

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing is launched")

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self._shared}

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[Any, int, int, int, int]:
        """(module, function, registers, spilled, most threads)"""
        return object(), 0, 0, 0, 1024

    def launcher_cls(self, src: Any, metadata: Any) -> Callable[..., None]:
        def launch(*args: Any) -> None:
            self.launched += 1

        return launch


def install(arch: str) -> CompileOnlyDriver:
    """Triton's driver in this process, from now on: a device of this architecture."""
    result = CompileOnlyDriver(target(arch), tiles(arch).shared)
    driver.set_active(result)
    return result


@dataclass(frozen=True, slots=True)
class CompileTask:
    """One thing to compile: a kernel for one specialisation of its arguments."""

    name: str
    kernel: Any
    specialisation: str


@dataclass(frozen=True, slots=True)
class CompileResult:
    """cached: it was there already."""

    seconds: float
    cached: bool


class NoopKernel:
    """A compiled kernel that does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *args: Any) -> None:
        return

    def run(self, *args: Any) -> None:
        return


class LaunchRecorder:
    """The kernels that launches of this process would have compiled. Once `attend` is called nothing compiles or runs."""

    def __init__(self) -> None:
        self.wanted: dict[str, CompileTask] = {}
        """Wanted compilations by Triton's own key, kernel first."""

    def attend(self) -> None:
        triton.knobs.runtime.jit_cache_hook = self._note

    def _note(self, *, key: str, repr: str, fn: Any, compile: dict[str, Any], **more: Any) -> bool:
        """Triton calls this before it compiles. True = leave it."""
        kernel = fn.jit_function
        name = kernel.__name__.strip("_")
        self.wanted.setdefault(f"{fn.module}.{name} {key}", CompileTask(name, kernel, compile["specialization_data"]))
        kernel.device_caches[0][0][key] = NoopKernel()  # asked once: the next launch of the same kind finds this
        return True

    def make(self, wanted: CompileTask) -> CompileResult:
        """Compile it, or find it in the cache. Raises whatever the compiler does, and OutOfResources if the device's shared
        memory is too small."""
        hits: list[bool] = []

        def listen(*, cache_hit: bool, **more: Any) -> None:
            hits.append(cache_hit)

        hook, triton.knobs.runtime.jit_cache_hook = triton.knobs.runtime.jit_cache_hook, None
        before, triton.knobs.compilation.listener = triton.knobs.compilation.listener, listen
        start = time.monotonic()
        try:
            wanted.kernel.preload(wanted.specialisation)._init_handles()
        finally:  # preload leaves a kernel where an Idle was, which is as good
            triton.knobs.runtime.jit_cache_hook, triton.knobs.compilation.listener = hook, before
        return CompileResult(time.monotonic() - start, all(hits))


def cache_folder() -> Path:
    """Triton's folder of compiled kernels."""
    return Path(triton.knobs.cache.dir)


def keep_in(folder: Path) -> None:
    triton.knobs.cache.dir = str(folder)
