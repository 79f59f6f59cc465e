"""Parameters: declared without a tensor framework, completed by the layer that uses them, read by the loader.

A `Weight` names the tensors of the checkpoint that hold a parameter, and its division among ranks. A `ParamSpec` adds the
requirements of the chosen kernel. The loader walks the tree of the latter, `sizes` that of the former. Layers never see a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Literal

from thalweg.hal.op import Pack
from thalweg.hal.step import Array
from thalweg.hal.weights import DENSE, WeightFormat

if TYPE_CHECKING:
    from thalweg.quantization.format import Scheme

Role = Literal["linear", "experts", "embedding", "head", "tied", "table", "plain"]
"""The use of a parameter, as far as its format depends on it. "tied": an output matrix that is the embedding too. "plain"
(norms, biases, routers) is never quantised."""
HEADS: tuple[Role, ...] = ("head", "tied")
MULTIPLIED: tuple[Role, ...] = ("linear", "experts", *HEADS)
Fill = Literal["normal", "ones", "zeros"]


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor in which a checkpoint may keep a source: a tensor of all experts, or a transposed one."""

    name: str
    shape: tuple[int, ...]
    """As it is stored."""
    at: int | None = None
    """Which matrix (or vector) of its first dimension; None = it is one."""
    turned: bool = False
    """[inputs, outputs], as in a convolution over one token."""
    first: int = 0
    """The first selected row, after transposing."""
    step: int = 1
    """Step between selected rows."""
    run: int = 0
    """Selected rows come in runs of this length, with `every` rows from one run to the next; 0 = no runs."""
    every: int = 0
    flat: bool = False
    """A convolution over whole patches: each of its outputs is a row."""
    normed: bool = False
    """Each row is divided by its length, after conversion to the parameter's dtype (`models.files`)."""
    parts: int = 0
    """The first dimension holds the rows of so many matrices, one after the other, of which `at` is one; 0 = it counts them."""
    quarters: int = 0
    """Rows come in heads of this many, with their second and third quarters swapped; 0 = in order."""

    def take(self, stored: Any, rows: int) -> Any:
        """`rows` rows of the stored array, without a copy unless they come in runs."""
        stored = stored.reshape(self.parts, -1, *stored.shape[1:]) if self.parts else stored
        found = stored if self.at is None else stored[self.at]
        if not found.shape:
            return found.reshape(1)
        if self.flat:
            found = found.reshape(found.shape[0], -1)
        found = found.T if self.turned else found
        if self.quarters:
            found = found.reshape(-1, 4, self.quarters // 4, *found.shape[1:])[:, [0, 2, 1, 3]].reshape(found.shape)
        if self.run:
            runs = found.reshape(-1, self.every, *found.shape[1:])[:, self.first : self.first + self.run]
            return runs.reshape(rows, *found.shape[1:])
        return found[self.first : self.first + rows * self.step : self.step]


@dataclass(frozen=True, slots=True)
class Source:
    """One tensor of the checkpoint, or some of its rows, under the name that the layer knows it by."""

    name: str
    shape: tuple[int, ...]
    """Whole (undivided), of the selected rows."""
    first: int = 0
    """The first of those rows."""
    rows: int = 0
    """Of the stored tensor; 0 = just the selected ones. More where a checkpoint keeps several matrices in one."""
    within: TensorView | None = None
    """Where to find it in checkpoints that have no tensor of this name."""
    absent: bool = False
    """No checkpoint has it: zeros."""
    heads: int = 0
    """Heads along the divided dimension, of which each rank has at least one: several ranks hold the same one where there are
    fewer than ranks. 0: values are divided evenly, wherever that cuts."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the stored tensors that may hold it."""
        return (self.name,) if self.within is None else (self.name, self.within.name)

    @property
    def checkpoint_shape(self) -> tuple[int, ...]:
        """The shape that the checkpoint's tensor has."""
        return (self.rows or self.shape[0], *self.shape[1:])

    def shard_shape(self, dim: int | None, size: int) -> tuple[int, ...]:
        """One rank's part. IndivisibleError."""
        return shard_shape(self.shape, dim, self._parts(size))

    def shard(self, dim: int, rank: int, size: int) -> slice:
        """Where one rank's part lies along `dim` of `shape`. IndivisibleError."""
        n = self.shard_shape(dim, size)[dim]
        first = n * (rank * self._parts(size) // size)
        return slice(first, first + n)

    def _parts(self, size: int) -> int:
        """Different parts that so many ranks hold."""
        return self.heads if 0 < self.heads < size and size % self.heads == 0 else size


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter. Several sources are joined along the first dimension, each divided among ranks first."""

    sources: tuple[Source, ...]
    shard: int | None = None
    """Dimension divided evenly among the ranks; None = every rank holds the whole parameter."""
    role: Role = "plain"
    fill: Fill = "normal"
    """Its values with load_format "dummy"."""
    dtype: str = ""
    """Its dtype in memory; "" = the model's dtype."""
    experts: int = 0
    """Experts that are placed whole on ranks, each with an equal run of the sources (`expert_span`). 0 = as `shard` has it."""

    @property
    def is_divided(self) -> bool:
        """Do ranks hold different parts?"""
        return self.shard is not None or self.experts > 0

    def shape(self, size: int) -> tuple[int, ...]:
        """On one of `size` ranks."""
        parts = [s.shard_shape(self.shard, size) for s in self.of_rank(0, size).sources]
        return (sum(p[0] for p in parts), *parts[0][1:])

    def of_rank(self, rank: int, size: int) -> Weight:
        """The parameter with only the sources that a rank reads from."""
        if not self.experts or size == 1:
            return self
        first, _ = expert_span(self.experts, rank, size)
        run = len(self.sources) // self.experts
        mine = self.sources[first * run : (first + experts_of_rank(self.experts, size)) * run]
        return replace(self, sources=mine, experts=0)


def divide_outputs(weight: Weight, size: int) -> Weight:
    """The weight of a layer with divided inputs, where every rank has all of them: divided by outputs, or whole where ranks do
    not divide those."""
    whole = replace(weight, shard=None, sources=tuple(replace(s, heads=0) for s in weight.sources))
    return replace(whole, shard=0) if all(s.shape[0] % size == 0 for s in whole.sources) else whole


class IndivisibleError(ValueError):
    """A parameter does not divide evenly among ranks."""


Weights = Mapping[Any, "Weights | Weight"]
"""Nested dicts of Weight."""


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """A parameter as the loader makes it."""

    weight: Weight
    dtype: str
    pack: Pack | None = None
    """For matrices a kernel multiplies by: the layout of the kernel, packed once, at load."""
    format: WeightFormat = DENSE
    """The format of such a matrix before it is packed."""
    matrices: int = 1
    """As `QTensor` has it."""
    make: Callable[[], Array] | None = field(default=None, kw_only=True)
    """A computed table instead of stored values, whole. Its only source, where it is divided, is a `table_source`."""

    def of_rank(self, rank: int, size: int) -> ParamSpec:
        """As `Weight.of_rank`."""
        return replace(self, weight=self.weight.of_rank(rank, size)) if self.weight.experts else self

    @property
    def sources(self) -> tuple[Source, ...]:
        return self.weight.sources

    @property
    def shard(self) -> int | None:
        return self.weight.shard

    def shape(self, size: int) -> tuple[int, ...]:
        return self.weight.shape(size)


def table_source(name: str, *shape: int) -> Source:
    """Of a computed table that is divided among ranks. name: no other table of the model has it."""
    return Source(name, shape, absent=True)


Specs = Mapping[Any, "Specs | ParamSpec"]
"""Nested dicts of ParamSpec; the loaded parameters have the same keys."""


def vector(name: str, size: int, *, shard: int | None = None, fill: Fill = "normal", dtype: str = "") -> Weight:
    """A bias or the weight of a norm."""
    return Weight((Source(name, (size,)),), shard, fill=fill, dtype=dtype)


def part_sources(name: str, parts: Sequence[int], *more: int, heads: Sequence[int] = ()) -> tuple[Source, ...]:
    """The parts of one tensor [sum of parts, *more], each divided among ranks by itself. heads: of each part, as `Source` has
    it."""
    each = zip(parts, accumulate(parts, initial=0), heads or (0,) * len(parts), strict=False)
    return tuple(Source(name, (n, *more), first, sum(parts), heads=of) for n, first, of in each)


def heads_of_rank(heads: int, ranks: int) -> int:
    """Heads that each rank has: at least one."""
    return max(1, heads // ranks)


def experts_of_rank(experts: int, ranks: int) -> int:
    """Experts that each rank holds. Where ranks do not divide them, one of some ranks' experts is another rank's too."""
    return -(-experts // ranks)


def expert_span(experts: int, rank: int, ranks: int) -> tuple[int, int]:
    """The first expert of a rank, and the first of the next: those it computes, all among the ones it holds."""
    return rank * experts // ranks, (rank + 1) * experts // ranks


def attach_views(weight: Weight, views: Sequence[TensorView]) -> Weight:
    """The same with a view for each source."""
    return replace(weight, sources=tuple(replace(s, within=v) for s, v in zip(weight.sources, views, strict=True)))


def matrices(parts: Mapping[str, int], inputs: int, *, shard: int | None, role: Role = "linear") -> Weight:
    """Matrices of these names and outputs, side by side in one product: [outputs, inputs] each."""
    return Weight(tuple(Source(f"{name}.weight", (n, inputs)) for name, n in parts.items()), shard, role)


def linear(
    parts: Mapping[str, int], inputs: int, *, shard: int | None, bias: bool = False, fused: str = "", turned: bool = False,
    heads: Sequence[int] = (),
) -> dict[str, Weight]:  # fmt: skip
    """The parameters of a linear layer that computes several products at once.

    parts: prefix of a tensor's name -> outputs. fused: the prefix of the one tensor in which the checkpoint keeps all
    parts, concatenated. shard: 0 divides outputs among ranks, 1 inputs, None nothing. turned: the checkpoint has
    [inputs, outputs]. heads: of each part, as in `Source`."""
    kinds: dict[str, tuple[str, tuple[int, ...], int | None]] = {"weight": (".weight", (inputs,), shard)}
    if bias:
        kinds["bias"] = (".bias", (), 0 if shard == 0 else None)
    result, total = {}, sum(parts.values())
    for kind, (suffix, more, divided_by) in kinds.items():
        sources, first = [], 0
        for name, n in parts.items():
            sources.append(
                Source(f"{fused}{suffix}", (n, *more), first, total) if fused else Source(f"{name}{suffix}", (n, *more))
            )
            first += n
        if turned and kind == "weight":  # under a name that no file has: a square matrix must not be taken as it lies
            sources = [
                Source(
                    f"{name}.weight.T", s.shape, within=TensorView(s.name, (inputs, s.checkpoint_shape[0]), None, True, s.first)
                )
                for name, s in zip(parts, sources, strict=True)
            ]
        if heads:
            sources = [replace(s, heads=n) for s, n in zip(sources, heads, strict=True)]
        result[kind] = Weight(tuple(sources), divided_by, "linear" if kind == "weight" else "plain")
    return result


def products(weight: Weight, formats: Scheme) -> list[Weight]:
    """The parts of a linear layer's weight that share a product: neighbours in the same format, if it allows joining."""

    def key(numbered: tuple[int, Source]) -> tuple[Any, int]:
        at, source = numbered
        form = formats.of(weight.role, source.name)
        return form, 0 if form.joins else at

    alike = groupby(enumerate(weight.sources), key)
    return [replace(weight, sources=tuple(source for _, source in parts)) for _, parts in alike]


def shard_shape(shape: tuple[int, ...], dim: int | None, size: int) -> tuple[int, ...]:
    """One rank's part of `shape`. IndivisibleError if it does not divide evenly."""
    if dim is None or size == 1:
        return shape
    if shape[dim] % size:
        raise IndivisibleError(f"dimension {dim} of {shape} does not divide among {size} ranks")
    return (*shape[:dim], shape[dim] // size, *shape[dim + 1 :])


def walk(tree: Mapping[Any, Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every leaf (a Weight or a ParamSpec) with its keys from the root, in order."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            for keys, leaf in walk(value):
                yield (key, *keys), leaf
        else:
            yield (key,), value
