"""Peak rates of the processor: its multiply-and-add instructions in the chosen instruction set, and its memory."""

from __future__ import annotations

import ctypes
import time

from thalweg.backends.cpu.native import NativeLibrary, alloc_zeros

KINDS = {"float32": (0,), "bfloat16": (1, 0), "int8": (2, 0), "int4": (3, 2, 0)}
"""Type -> loops of `thalweg_peak` that could serve it: narrow numbers may be multiplied as wide ones."""
LEAST = 1e-3
"""Seconds of a measurement: short, so that on a busy machine a few of many go undisturbed."""


def peak(library: NativeLibrary, dtype: str) -> float:
    """Operations per second of all threads, the most of many short measurements."""
    return max(_rate(library, kind) for kind in KINDS[dtype])


def read_rate(library: NativeLibrary, size: int = 512 << 20) -> float:
    """Bytes per second of all threads reading memory in order, the most of some rounds. size: a multiple of 64, more than
    caches hold."""
    memory = alloc_zeros(library, size)
    ctypes.memset(memory, 1, size)
    best = 0.0
    for _ in range(6):
        start = time.perf_counter()
        library.read(library.context, ctypes.addressof(memory), size)
        best = max(best, size / (time.perf_counter() - start))
    return best


def _rate(library: NativeLibrary, kind: int, repeats: int = 60) -> float:
    if not library.peak(library.context, kind, 1):
        return 0.0
    rounds = 1 << 14
    rates: list[float] = []
    while len(rates) < repeats:
        start = time.perf_counter()
        done: int = library.peak(library.context, kind, rounds)
        seconds = time.perf_counter() - start
        if seconds < LEAST:
            rounds *= 2
        else:
            rates.append(done / seconds)
    return max(rates)
