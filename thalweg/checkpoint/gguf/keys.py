"""Checked access to the metadata of a GGUF file. CheckpointError names file and key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.checkpoint.gguf.header import Texts
from thalweg.errors import CheckpointError, UnsupportedModelError

MAX_TEXTS = 1 << 23
"""Most entries of an array of text. No vocabulary has more tokens or merges."""


@dataclass(frozen=True, slots=True)
class Keys:
    path: Path
    metadata: Mapping[str, Any]
    prefix: str = ""
    """Prefix of all names: the architecture and a dot."""

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.metadata

    def integer(self, name: str, default: int | None = None, low: int = 0, high: int = 2**31 - 1) -> int:
        """An integer. An array with one per layer must have equal entries."""
        value = self._one(name)
        if value is None:
            return int(self._absent(name, default))
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._fault(name, f"must be an integer, not {value!r:.80}")
        if not low <= value <= high:
            raise self._fault(name, f"must be between {low} and {high}, not {value}")
        return value

    def each(self, name: str, count: int, default: int | None = None) -> list[int]:
        """An integer for each of `count` layers: from an array, or one integer for all."""
        found = self.metadata.get(self.prefix + name)
        if not isinstance(found, np.ndarray):
            return [self.integer(name, default)] * count
        if found.dtype.kind not in "iu" or len(found) < count or (found < 0).any():
            raise self._fault(name, f"must be a number for each of the {count} layers")
        return [int(n) for n in found[:count]]

    def real(self, name: str, default: float | None = None) -> float:
        value = self._one(name)
        if value is None:
            return float(self._absent(name, default))
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._fault(name, f"must be a finite number, not {value!r:.80}")
        return _shortest(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.metadata.get(self.prefix + name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._fault(name, f"must be true or false, not {value!r:.80}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self.metadata.get(self.prefix + name)
        if value is None:
            return str(self._absent(name, default))
        if not isinstance(value, str):
            raise self._fault(name, f"must be text, not {value!r:.80}")
        return value

    def texts(self, name: str) -> list[str] | None:
        """An array of text. None: there is no such key."""
        value = self.metadata.get(self.prefix + name)
        if value is None:
            return None
        if not isinstance(value, Texts) or len(value) > MAX_TEXTS:
            raise self._fault(name, f"must be an array of no more than {MAX_TEXTS} texts")
        return list(value)

    def numbers(self, name: str, kinds: str) -> np.ndarray | None:
        """An array with one of these numpy kinds ("i", "u", "f", "b"). None: there is no such key."""
        value = self.metadata.get(self.prefix + name)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            raise self._fault(name, "must be an array of numbers")
        return value

    def _one(self, name: str) -> Any:
        value = self.metadata.get(self.prefix + name)
        if not isinstance(value, np.ndarray):
            return value
        found = set(value.tolist())
        if len(found) != 1:
            raise UnsupportedModelError(
                f"{self.path}: {self.prefix}{name}: layers that differ in it are not read by this version"
            )
        return found.pop()

    def _absent(self, name: str, default: Any) -> Any:
        if default is None:
            raise self._fault(name, "missing")
        return default

    def _fault(self, name: str, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {self.prefix}{name}: {what}")


def _shortest(value: float) -> float:
    """The shortest decimal that rounds to this float32: 1e-05, not its exact value 9.99999974e-06."""
    near = np.float32(value)
    return float(str(near)) if float(near) == value else float(value)
