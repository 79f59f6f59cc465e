"""Helpers of the offline benchmarks: random prompts, percentiles, writing results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.errors import ConfigError

PERCENTILES = (10, 25, 50, 75, 90, 99)


def random_prompts(
    lengths: Sequence[int], vocab: int, avoid: frozenset[int], seed: int, prefix: int = 0
) -> list[dict[str, Any]]:
    """One prompt of random token ids per length, after `prefix` shared ids. Deterministic for a seed. avoid: ids never sampled
    (special tokens)."""
    rng = np.random.default_rng(seed)
    ids = np.setdiff1d(np.arange(vocab), np.fromiter(avoid, np.int64, len(avoid)))
    shared = rng.choice(ids, prefix).tolist()
    return [{"prompt_token_ids": shared + rng.choice(ids, n).tolist()} for n in lengths]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """By percent, as text, for JSON."""
    return {str(p): float(v) for p, v in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True)}


def at_least(least: int, **values: int | None) -> None:
    """ConfigError naming every flag with a value below `least`."""
    wrong = {n: v for n, v in values.items() if v is not None and v < least}
    if wrong:
        raise ConfigError(*(f"--{n.replace('_', '-')}: {v} must be at least {least}" for n, v in wrong.items()))


def check_output(path: str | None) -> None:
    """ConfigError now rather than after the measurement if the results cannot be written."""
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise ConfigError(f"--output-json: no directory {str(Path(path).parent)!r}; make it first")


def write(path: str | None, result: dict[str, Any]) -> None:
    if path is not None:
        Path(path).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
