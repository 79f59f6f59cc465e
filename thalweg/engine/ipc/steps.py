"""StepBatch and StepResult as plain values and numpy arrays, which `codec` can write into a frame.

A dataclass becomes {"kind": its name, "fields": its values}, a tuple a list, a mapping {"map": ...}, a class
{"type": its name}. Only classes of a step are read back: those of `hal.step`, and the parts of the table of
features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import numpy as np

from thalweg.engine.ipc.codec import FrameError
from thalweg.features import all_features
from thalweg.hal.step import Features, Logprobs, SamplingArrays, StepBatch, StepResult, TableRows
from thalweg.plugins import import_attribute

_CORE = (StepBatch, SamplingArrays, TableRows, Features, StepResult, Logprobs)


def write_step(value: Any) -> Any:
    """A batch before the runner has seen it, or a result on the host. TypeError for any other class inside it."""
    if value is None or isinstance(value, str | int | float | np.ndarray):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list):
        return [write_step(v) for v in value]
    if isinstance(value, Mapping):
        return {"map": {name: write_step(v) for name, v in value.items()}}
    if isinstance(value, type) and value.__name__ in _kinds():
        return {"type": value.__name__}
    if is_dataclass(value) and type(value).__name__ in _kinds():
        return {"kind": type(value).__name__, "fields": [write_step(getattr(value, f.name)) for f in fields(value)]}
    if hasattr(value, "__array__"):  # a host array of the backend's framework
        return np.asarray(value)
    raise TypeError(f"{type(value).__name__} is no part of a step")


def read_step(plain: Any) -> Any:
    """The value that `write_step` wrote, with arrays that can be written to. FrameError for anything else."""
    try:
        return _read(plain)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise FrameError(f"not a step: {e}") from None


def _read(plain: Any) -> Any:
    if isinstance(plain, np.ndarray):
        return plain if plain.flags.writeable else plain.copy()
    if isinstance(plain, list):
        return tuple(_read(v) for v in plain)
    if not isinstance(plain, dict):
        return plain
    if "map" in plain:
        return {name: _read(v) for name, v in plain["map"].items()}
    if "type" in plain:
        return _kinds()[plain["type"]]
    kind = _kinds()[plain["kind"]]
    return kind(**{f.name: _read(v) for f, v in zip(fields(kind), plain["fields"], strict=True)})


@cache
def _kinds() -> Mapping[str, Any]:
    """Classes of a step by name. Parts of installed packages are among them."""
    return {kind.__name__: kind for kind in (*_CORE, *(import_attribute(f.part) for f in all_features()))}
