"""What the processor's multiply-and-add instructions do at most, of the instruction set that was chosen."""

from __future__ import annotations

import time

from thalweg.backends.cpu.native import Library

KINDS = {"float32": (0,), "bfloat16": (1, 0), "int8": (2, 0), "int4": (3, 2, 0)}
"""Type -> loops of `thalweg_peak` that could serve it: narrow numbers may be multiplied as wide ones."""
LEAST = 1e-3
"""Seconds of a measurement: short, so that on a busy machine a few of many go undisturbed."""


def peak(library: Library, dtype: str) -> float:
    """Operations per second of all threads, the most of many short measurements."""
    return max(_rate(library, kind) for kind in KINDS[dtype])


def _rate(library: Library, kind: int, repeats: int = 60) -> float:
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
