"""Arrays of a step as they are declared: dimensions, dtype, and the value that fills them up.

    tokens: Array = dim("T", np.int32)
    value: Array = dim("N", np.float32)

Padding, checks, copies and layouts follow from these declarations. A dimension is one of:

| dimension | its length | padding adds |
|---|---|---|
| T, S, B | tokens, sequences, columns of a block table | up to the bucket's length |
| N | entries of a flat list, as many in every list of a part | up to a power of two; an empty list stays empty |
| `name` | anything, the same wherever a part names it | nothing |
| `<name` | likewise | in front, up to 1 + a power of two |
| a number | that number | nothing |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

if TYPE_CHECKING:
    from thalweg.hal.step import StepBatch

Array = Any
"""A numpy array on the host; the backend's own array type inside a step."""

LIST = 8
"""Least length that padding gives a flat list."""
WIDTH = 3
"""Least length that padding gives a dimension that grows in front."""

D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Dim:
    """The declaration of one array."""

    axes: tuple[str, ...]
    dtype: np.dtype[Any]
    fill: float

    def blank(self, sizes: Mapping[str, int]) -> np.ndarray:
        """An array of the fill value. KeyError for a dimension without a given length."""
        lengths = [int(a) if a.isdecimal() else sizes[a.lstrip("<")] for a in self.axes]
        return np.full(lengths, self.fill, self.dtype)

    def grow(self, a: Any, sizes: Mapping[str, int], least: int = LIST) -> Any:
        """The array padded, or the same one if it needs none. A substitute for an array pads itself."""
        if not isinstance(a, np.ndarray):
            return a.grown(sizes)
        want = [self._length(axis, n, sizes, least) for axis, n in zip(self.axes, a.shape, strict=True)]
        if tuple(want) == a.shape:
            return a
        out = np.full(want, self.fill, a.dtype)
        at = (slice(w - n, w) if axis[0] == "<" else slice(n) for axis, w, n in zip(self.axes, want, a.shape, strict=True))
        out[tuple(at)] = a
        return out

    @staticmethod
    def _length(axis: str, n: int, sizes: Mapping[str, int], least: int) -> int:
        if axis == "N":
            return max(least, 1 << (n - 1).bit_length()) if n else 0
        if axis[0] == "<":
            return max(WIDTH, 1 + (1 << (n - 2).bit_length())) if n > 1 else n
        return sizes.get(axis, n) if axis.isupper() else n


def dim(axes: str, dtype: Any, fill: float = 0) -> Any:
    """A field with an array or a tuple of arrays. axes: its dimensions, separated by spaces ("T", "S 2", "N hidden")."""
    return field(metadata={"dim": Dim(tuple(axes.split()), np.dtype(dtype), fill)})


def dims(kind: type) -> Mapping[str, Dim]:
    """The declared arrays of a dataclass, by field."""
    return _array_dims(kind)


@cache
def _array_dims(kind: Any) -> Mapping[str, Dim]:
    return {f.name: f.metadata["dim"] for f in fields(kind) if "dim" in f.metadata}


def blank(kind: type[D], sizes: Mapping[str, int], **more: Any) -> D:
    """An instance with arrays of fill values only."""
    return kind(**{name: d.blank(sizes) for name, d in dims(kind).items()}, **more)


def grown(x: D, sizes: Mapping[str, int], least: int = LIST) -> D:
    """The same with its (host) arrays padded. sizes: lengths of T, S and B. least: of flat lists."""
    result = {}
    for name, d in dims(type(x)).items():
        a = getattr(x, name)
        result[name] = tuple(d.grow(each, sizes, least) for each in a) if isinstance(a, tuple) else d.grow(a, sizes, least)
    out: D = replace(x, **result)  # type: ignore[type-var]
    return out


def check(x: Any, name: str, sizes: Mapping[str, int]) -> None:
    """ValueError, naming the field, if a (host) array has another shape or dtype than was declared."""
    known = dict(sizes)
    for key, d in dims(type(x)).items():
        value = getattr(x, key)
        for a in value if isinstance(value, tuple) else (value,):
            want = [int(axis) if axis.isdecimal() else known.get(axis.lstrip("<")) for axis in d.axes]
            if len(a.shape) != len(want) or any(w not in (None, n) for w, n in zip(want, a.shape, strict=True)):
                expected = ", ".join(axis if w is None else str(w) for axis, w in zip(d.axes, want, strict=True))
                raise ValueError(f"{name}.{key}: shape {a.shape}, expected ({expected})")
            if isinstance(a, np.ndarray) and a.dtype != d.dtype:
                raise ValueError(f"{name}.{key}: dtype {a.dtype}, expected {d.dtype}")
            if not isinstance(value, tuple):
                known |= {axis.lstrip("<"): n for axis, n in zip(d.axes, a.shape, strict=True) if not axis.isdecimal()}


class Static:
    """A value other than an array, the same wherever a batch goes."""

    __slots__ = ()


@dataclass(slots=True)
class Part:
    """The arrays that one feature adds to a step, declared by `dim` and present only in steps that need it.

    The control plane fills it (`engine/control/parts`), the step reads it by `StepBatch.get`. docs/adding-a-feature.md is
    the recipe. Subclasses are `@dataclass(slots=True)`.
    """

    logits: ClassVar[bool] = False
    """It changes logits before sampling."""
    drafts: ClassVar[bool] = False
    """Its changes are computed for drafts too. A sequence with any other part that changes logits gets no drafts."""
    prompts: ClassVar[bool] = False
    """Only steps that compute part of a prompt have it."""
    level: int = field(default=0, kw_only=True)
    """How much is asked for, as far as an executable must know: static. One made for a higher level serves a lower one too."""

    @classmethod
    def blank(cls, sizes: Mapping[str, int], level: int = 0) -> Self:
        """A part that changes nothing. KeyError for a dimension without a given length."""
        return blank(cls, sizes, level=level)

    def check(self, batch: StepBatch) -> None:
        """ValueError, naming the field, if it does not fit the batch. Shapes are checked already. Default: nothing else."""


def map_arrays(x: Any, f: Callable[[str, Array], Any], name: str = "") -> Any:
    """`x` with every array replaced by `f(dotted name, array)`, in a fixed order. Numbers and `Static` values stay."""
    kind: Any = type(x)
    if hasattr(kind, "__dataclass_fields__") and dims(kind):
        dot = f"{name}." if name else ""
        return kind(**{key: map_arrays(getattr(x, key), f, dot + key) for key in _names(kind)})
    if isinstance(x, tuple):
        return tuple(map_arrays(v, f, f"{name}.{type(v).__name__ if isinstance(v, Part) else i}") for i, v in enumerate(x))
    if isinstance(x, Mapping):
        return {key: map_arrays(x[key], f, f"{name}.{key}") for key in sorted(x)}
    return x if x is None or isinstance(x, int | Static) else f(name, x)


def arrays(x: Any) -> list[tuple[str, Array]]:
    """Every array with its dotted name, in the order of `map_arrays`."""
    found: list[tuple[str, Array]] = []
    _collect(x, "", found)
    return found


def _collect(x: Any, name: str, found: list[tuple[str, Array]]) -> None:
    """Every step runs this for every array: it makes no copy of `x`."""
    kind: Any = type(x)
    if isinstance(x, np.ndarray):
        found.append((name, x))
    elif keys := _keys(kind):
        dot = f"{name}." if name else ""
        for key in keys:
            _collect(getattr(x, key), dot + key, found)
    elif isinstance(x, tuple):
        for i, v in enumerate(x):
            _collect(v, f"{name}.{type(v).__name__ if isinstance(v, Part) else i}", found)
    elif isinstance(x, Mapping):
        for key in sorted(x):
            _collect(x[key], f"{name}.{key}", found)
    elif x is not None and not isinstance(x, int | Static):
        found.append((name, x))


@cache
def _keys(kind: Any) -> tuple[str, ...]:
    """The fields of a class with arrays. Others have none."""
    return _names(kind) if hasattr(kind, "__dataclass_fields__") and dims(kind) else ()


def constants(x: Any) -> Iterator[int]:
    """Whole numbers among the arrays of mappings and tuples, in the order of `map_arrays`."""
    if isinstance(x, Mapping):
        for key in sorted(x):
            yield from constants(x[key])
    elif isinstance(x, tuple):
        for v in x:
            yield from constants(v)
    elif isinstance(x, int):
        yield x


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))
