"""Times of tokens, from the weights with which they attend to the audio: dynamic time warping over the heads that align both,
as Whisper's authors do. Ties are broken as in transformers, so the times are the same."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

WIDTH = 7
"""Frames of the median filter."""
DIAGONAL, DOWN, RIGHT = 0, 1, 2


def align_tokens(weights: np.ndarray, step: float) -> list[float]:
    """weights f32[tokens, heads, frames], at least one of each -> seconds at which each token begins. step: seconds per
    frame."""
    spread = weights.std(0)
    normal = np.divide(weights - weights.mean(0), spread, out=np.zeros_like(weights), where=spread > 0)
    path = _find_path(-_median(normal).mean(1, dtype=np.float32).astype(np.float64))
    return [float(frame * step) for frame in path]


def _median(values: np.ndarray) -> np.ndarray:
    """The median of `WIDTH` values along the last axis, reflected at both ends."""
    half = WIDTH // 2
    if values.shape[-1] <= half:
        return values
    edges = [(0, 0)] * (values.ndim - 1) + [(half, half)]
    seen = sliding_window_view(np.pad(values, edges, mode="reflect"), WIDTH, -1)
    found: np.ndarray = np.median(seen, -1)
    return found


def _find_path(costs: np.ndarray) -> np.ndarray:
    """costs f64[tokens, frames] -> i64[tokens]: the first frame of each token on the cheapest path. A path visits every token
    and every frame in order, and adds the costs of its cells."""
    rows, columns = costs.shape
    trace = _trace(costs)
    first, i, j = np.zeros(rows, np.int64), rows - 1, columns - 1
    while i > 0 or j > 0:
        move = trace[i, j] if i > 0 and j > 0 else RIGHT if i == 0 else DOWN
        if move != RIGHT:
            first[i] = j
            i -= 1
        if move != DOWN:
            j -= 1
    return first


def _trace(costs: np.ndarray) -> np.ndarray:
    """The last move of the cheapest path to each cell, i8[tokens, frames]. Computed along anti-diagonals, whose cells do not
    depend on each other. Ties move right, as in transformers."""
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    total[0, 0] = 0
    trace = np.zeros((rows, columns), np.int8)
    for k in range(rows + columns - 1):
        i = np.arange(max(0, k - columns + 1), min(rows, k + 1))
        j = k - i
        diagonal, down, right = total[i, j], total[i, j + 1], total[i + 1, j]
        moves = np.where((down < diagonal) & (down < right), DOWN, RIGHT)
        moves = np.where((diagonal < down) & (diagonal < right), DIAGONAL, moves)
        trace[i, j] = moves
        total[i + 1, j + 1] = costs[i, j] + np.choose(moves, (diagonal, down, right))
    return trace
