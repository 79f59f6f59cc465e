"""Models that cannot be divided among ranks: one table, checked before a layer is built or a weight is read.

A layer has no such check. `Context.share` refuses sizes that do not divide, and `models.files` quantised tensors that
cannot be cut. `ci/refusals.py` prints the table, and finds layers that refuse by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from thalweg.errors import ConfigError
from thalweg.models.fallback.spec import TransformersSpec
from thalweg.models.spec import ModelSpec

ENCODERS = ("vision", "audio")
"""Fields of a ModelSpec that every rank computes whole."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A kind of model that tensor parallelism excludes."""

    layer: str
    """The module of `models.layers`, or "fallback"."""
    why: str
    applies: Callable[[Any], bool]
    """Of any part of a model's declaration."""


TENSOR = (
    Refusal("fallback", "the fallback to transformers runs on one device", lambda p: isinstance(p, TransformersSpec)),
)  # fmt: skip


def check_ranks(spec: ModelSpec | TransformersSpec, sizes: Mapping[str, int]) -> None:
    """ConfigError lists why this model cannot be divided so. sizes: ranks of each axis of `hal.comm.Mesh`."""
    if divided := [axis for axis in ("stage", "data") if sizes.get(axis, 1) > 1]:
        raise ConfigError(*(f"{axis}: models are divided by tensor parallelism only, not along this axis" for axis in divided))
    if sizes.get("expert", 1) not in (1, sizes.get("tensor", 1)):
        raise ConfigError("expert: experts are placed on the ranks of the tensor axis, and on no others")
    if sizes.get("tensor", 1) > 1 and (found := refusals_of(spec)):
        raise ConfigError(*(f"tensor_parallel_size: {r.why}: leave it at 1" for r in found))


def refusals_of(spec: ModelSpec | TransformersSpec) -> list[Refusal]:
    """Rows of the table that apply to a model, each once."""
    parts = [spec] if isinstance(spec, TransformersSpec) else list(_parts(spec, set()))
    return [r for r in TENSOR if any(r.applies(p) for p in parts)]


def _parts(value: Any, seen: set[int]) -> Iterator[Any]:
    """Every dataclass in a declaration, except encoders."""
    if isinstance(value, tuple):
        for v in value:
            yield from _parts(v, seen)
    elif is_dataclass(value) and not isinstance(value, type) and id(value) not in seen:
        seen.add(id(value))
        yield value
        for field in fields(value):
            if not (isinstance(value, ModelSpec) and field.name in ENCODERS):
                yield from _parts(getattr(value, field.name), seen)
