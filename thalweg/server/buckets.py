"""Buckets of the histograms of /metrics, by family, and the check of --custom-histogram-buckets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
CHOICES = (1, 2, 5, 10, 20)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
FAMILIES: Mapping[str, Sequence[float]] = {
    "request_latency": REQUEST,
    "time_to_first_token": FIRST_TOKEN,
    "inter_token_latency": PER_TOKEN,
    "iteration_tokens": STEP_TOKENS,
    "request_params_n": CHOICES,
    "request_num_preemptions": PREEMPTIONS,
    "request_tokens": (),
}
"""Upper bounds as they stand, by the field's names of families. Those of request_tokens follow from the model's context."""
MOST = 200
"""Buckets of a histogram."""


def problems_of(boundaries: Mapping[str, Any]) -> Iterator[str]:
    """Problems of buckets by family."""
    for name, bounds in boundaries.items():
        if name not in FAMILIES:
            yield f"{name!r:.60} is no family of histograms; there are {', '.join(FAMILIES)}"
        elif not isinstance(bounds, list) or not 0 < len(bounds) <= MOST:
            yield f"{name}: must be a list of 1 to {MOST} upper bounds"
        elif not all(type(b) in (int, float) and math.isfinite(b) for b in bounds):
            yield f"{name}: bounds must be numbers"
        elif any(a >= b for a, b in pairwise(bounds)) or bounds[0] <= 0:
            yield f"{name}: bounds must be above 0, and grow"


def families(boundaries: Mapping[str, Any] | None, context: int) -> dict[str, tuple[float, ...]]:
    """The bounds of each family for a model with a context of so many tokens, those of the user before ours."""
    ours = {**FAMILIES, "request_tokens": steps_125(context)}
    return {name: tuple(map(float, (boundaries or {}).get(name, bounds))) for name, bounds in ours.items()}


def steps_125(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 ... up to `limit`."""
    found = [m * 10**e for e in range(12) for m in (1, 2, 5)]
    return tuple(float(v) for v in found if v <= limit) or (1.0,)
