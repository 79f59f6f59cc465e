"""Dense weights with values on a grid of 4 to 6 bits: files dequantised from Q4_0, Q4_1, Q4_K_M, AWQ or MLX, and models
trained for 4 bits and published as bfloat16.

Rounding such weights again, in groups other than theirs, loses as much as the first rounding did. In their own groups nothing
is lost. So `--quantization int4` looks at some of a checkpoint's weights before it chooses a group size. No tensor framework.
"""

from __future__ import annotations

import numpy as np

from thalweg.checkpoint.weights import Weights

METHODS = ("int4", "w4a16", "w4a8")
"""Names of `--quantization` that may keep such weights as they are."""
KEY = "weight_grid"
"""Of a model's configuration here: the inputs that share a scale in its dense weights."""
NAMES = "weights_on_grids"
"""Likewise, where not all tensors hold such weights: names of those that do, with the bits and the inputs of a group."""
GROUP = 32
"""Inputs that share a scale in the formats of 4 bits with the smallest groups. Larger groups are multiples."""
TENSORS, ROWS, GROUPS = 12, 8, 8
"""Matrices to sample, and rows and groups of each."""
STEPS = 15
FINE, FINE_GROUPS = 6, (32, 16)
"""Bits of the finer grids, without minimums, and inputs that share a scale there: Q5_0 and Q6_K of GGUF."""
MARGIN = 0.1
"""Of the squared error that rounding has on ordinary weights. Weights on a grid have about 0.01, by rounding to 16 bits."""
DTYPES = ("bfloat16", "float16", "float32")


def find_group(weights: Weights) -> int:
    """GROUP if the matrices inside layers hold 4-bit integers in groups of that many inputs, else 0."""
    names = _eligible(weights)
    sample = names[:: max(1, -(-len(names) // TENSORS))]
    if not sample:
        return 0
    found = [_compare_errors(_read(weights, name)) for name in sample]
    return GROUP if sum(a for a, _ in found) < MARGIN * sum(b for _, b in found) else 0


def find_tensors(weights: Weights) -> dict[str, tuple[int, int]]:
    """The matrices inside layers that hold integers of 4 bits in groups of GROUP inputs, or of FINE bits in groups of
    FINE_GROUPS: name -> (bits, inputs of a group). Files dequantised from Q4_K_M have some. Reads a sample of every matrix."""
    found = ((name, _find_grid(_read(weights, name))) for name in _eligible(weights))
    return {name: grid for name, grid in found if grid is not None}


def _find_grid(groups: np.ndarray) -> tuple[int, int] | None:
    """(bits, inputs of a group) of the coarsest grid that holds these values [groups, GROUP]."""
    mine, ordinary = _compare_errors(groups)
    if mine < MARGIN * ordinary:
        return 4, GROUP
    for size in FINE_GROUPS:
        mine, ordinary = _compare_fine(groups.reshape(-1, size))
        if mine < MARGIN * ordinary:
            return FINE, size
    return None


def _eligible(weights: Weights) -> list[str]:
    """Names of the matrices inside layers, which have numbers in their names, of whole groups."""
    names = []
    for name in weights.names:
        dtype, shape = weights.entry(name)
        wide = len(shape) == 2 and shape[1] % GROUP == 0 and min(shape) >= 2 * GROUP
        if wide and dtype in DTYPES and any(part.isdecimal() for part in name.split(".")):
            names.append(name)
    return sorted(names)


def _read(weights: Weights, name: str) -> np.ndarray:
    """Groups of the first rows, float32 [groups, GROUP]."""
    dtype, (rows, columns) = weights.entry(name)
    values = weights.read(name, slice(0, min(ROWS, rows)), slice(0, min(GROUPS * GROUP, columns)))
    wide = (values.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else values.astype(np.float32)
    return np.ascontiguousarray(wide).reshape(-1, GROUP)


def _compare_errors(groups: np.ndarray) -> tuple[float, float]:
    """Squared errors: on the best grid of up to 16 levels from each group's least to its largest value, and those that ordinary
    weights of the same ranges have."""
    low = groups.min(1, keepdims=True)
    span = groups.max(1, keepdims=True) - low
    best = np.full(len(groups), np.inf, np.float32)
    for steps in range(STEPS, STEPS // 2, -1):
        step = np.where(span > 0, span, 1) / steps
        rounded = np.rint((groups - low) / step) * step + low
        best = np.minimum(best, np.square(groups - rounded).sum(1))
    return float(np.sum(best)), float(np.square(span / STEPS).sum() * groups.shape[1] / 12)


def _compare_fine(groups: np.ndarray) -> tuple[float, float]:
    """The same of the best grid with a level at zero and up to 32 levels from there to each group's largest magnitude."""
    most = np.abs(groups).max(1, keepdims=True)
    best, top = np.full(len(groups), np.inf, np.float32), 1 << FINE - 1
    for steps in range(top, top // 2 - 1, -1):
        step = np.where(most > 0, most, 1) / steps
        best = np.minimum(best, np.square(groups - np.rint(groups / step) * step).sum(1))
    return float(np.sum(best)), float(np.square(most / top).sum() * groups.shape[1] / 12)
