"""Kernels compiled side by side, before the steps that launch them run.

A step launches its kernels in sequence, and an uncompiled one holds up all that follow. Steps therefore first run on tensors
without memory, where each launch only hands its kernel to other threads. A kernel missed here is compiled when the step
itself runs.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

NOWHERE = torch.device("meta")
THREADS = 16
"""Upper bound of compiling threads. A compiler of one kernel needs some hundred MB."""


def without_memory(x: Any) -> Any:
    """A nest of arrays with each tensor replaced by one without memory, of the same sizes, strides and type."""
    if isinstance(x, Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=NOWHERE)
    if isinstance(x, Mapping):
        return {k: without_memory(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        result = [without_memory(v) for v in x]
        return result if isinstance(x, list) else type(x)(*result) if hasattr(x, "_fields") else tuple(result)
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{f.name: without_memory(getattr(x, f.name)) for f in fields(x) if f.init})
    return x


@contextmanager
def compiling() -> Iterator[bool]:
    """Within, launches compile on other threads and run nothing, and leaving waits for them. False: not supported here, and
    launches run as anywhere. Reasons are no kernels compiled at first use, one processor, or a Triton that compiles one at a
    time."""
    threads = min(THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    mode, kernels = _triton()
    if mode is None or threads < 2:
        yield False
        return
    run = kernels.run

    def hand_over(self: Any, *args: Any, grid: Any, warmup: bool, **given: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **given)

    with ThreadPoolExecutor(threads, "compile") as pool, _once():
        kernels.run = hand_over
        try:
            with mode(pool, ignore_errors=True):
                yield True
        finally:
            kernels.run = run


@contextmanager
def _once() -> Iterator[None]:
    """Within, Triton is asked only once for a kernel being compiled. Version 3.6 would make the key of the compiled file again
    for every layer that launches it."""
    from triton import knobs
    from triton.runtime import driver

    requested: set[tuple[int, str]] = set()
    held: list[tuple[dict[str, Any], str]] = []
    waiting, device = object(), driver.active.get_current_device()

    def leave(*, key: str, fn: Any, **more: Any) -> bool:
        """Triton calls this before it compiles. True = do not."""
        if (id(fn.jit_function), key) not in requested:
            requested.add((id(fn.jit_function), key))
            return False
        cache = fn.jit_function.device_caches[device][0]
        cache[key] = waiting  # found by all that follow, until the kernel replaces it
        held.append((cache, key))
        return True

    before = knobs.runtime.jit_cache_hook
    if before is None:
        knobs.runtime.jit_cache_hook = leave
    try:
        yield
    finally:
        knobs.runtime.jit_cache_hook = before
        for cache, key in held:
            if cache.get(key) is waiting:  # it did not compile, and says why when it is launched
                del cache[key]


def _triton() -> tuple[Any, Any]:
    """(its mode of compiling on threads, the class of its kernels). (None, None) where it has none or is not in use."""
    if "triton" not in sys.modules:
        return None, None
    try:
        from triton import AsyncCompileMode
        from triton.runtime import driver
        from triton.runtime.jit import JITFunction

        driver.active.get_current_device()
    except (ImportError, RuntimeError):  # without a driver there is nothing to compile for
        return None, None
    return AsyncCompileMode, JITFunction
