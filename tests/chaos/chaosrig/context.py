"""What every row is given: its seed and its size; and what a row is."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from chaosrig.table import Figure

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    seed: int
    full: bool

    def rng(self, row: str) -> random.Random:
        """The row's own randomness: the same whichever other rows run."""
        return random.Random(f"{self.seed}/{row}")

    def size(self, short: T, full: T) -> T:
        return full if self.full else short


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario and the battery rows it reports."""

    ids: tuple[str, ...]
    run: Callable[[Context], Awaitable[list[Figure]]]
    alone: bool = True
    """False: what it measures does not suffer when other rows run beside it."""
    patience: float = 120.0
    """Seconds after which the scenario counts as failed in the short budget; in the full one, ten times that."""
