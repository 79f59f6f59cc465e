"""From an adapter's updates, under checkpoint names, to the arrays of layers. Every update must be used: an adapter without one
of its matrices differs from the trained one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from thalweg.checkpoint.adapters.base import AdapterWeights, LowRank, Replaced, StackedLowRank
from thalweg.checkpoint.adapters.peft_refusals import MERGE
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.adapter_arrays import HINT, ExpertsLayout, TargetArrays, check_range
from thalweg.models.adapter_names import is_target
from thalweg.models.adapters import EMBED, EXTENDED, HEAD, AdapterPlan, ProjectionTarget, TableTarget, Target
from thalweg.models.weights import Role, Source


class BaseReader(Protocol):
    def __call__(self, source: Source, role: Role, *, served: bool = False) -> torch.Tensor:
        """A tensor of the base model, whole and dequantised, f32 on the host. served: as a layer holds it, if rounded."""


def lay_out(
    adapter: AdapterWeights,
    room: AdapterPlan,
    rename: Callable[[str], str | None],
    dtype: torch.dtype,
    base: BaseReader,
    head_dim: int = 0,
    tensor_rank: int = 0,
) -> dict[str, TargetArrays]:
    """The arrays of every target that the adapter changes, by its name. B holds the scale: it is multiplied in float32, then
    rounded to dtype. rename: the layers' name of a checkpoint's tensor (`Model.rename`), None for tensors they do not have.
    head_dim: values of a head of q and k, in adapters that have them `paired`. 0: layers differ.
    base: read for DoRA, biases and copies of base matrices only.
    tensor_rank: of the ranks that divide the model. The arrays are its part. Errors are the same on every rank.

    CheckpointError names a tensor unknown to the model, of another shape, given twice, or too large for dtype.
    UnsupportedModelError names an unsupported target, and an adapter of too large a rank."""
    if adapter.rank > room.rank:
        raise UnsupportedModelError(
            f"the adapter has rank {adapter.rank} and the engine has room for {room.rank}: start it with --max-lora-rank "
            f"(max_lora_rank) of at least {adapter.rank}"
        )
    layout = _Layout(room, rename, dtype, base, tensor_rank)
    for name, update in adapter.modules.items():
        if isinstance(update, StackedLowRank):
            layout.experts.add_stack(name, update, rename(name))
        elif isinstance(update, LowRank):
            layout.add_low_rank(name, unpair(name, update, head_dim) if update.paired else update)
        else:
            layout.replace(name, update)
    return layout.arrays | layout.experts.arrays


def unpair(name: str, module: LowRank, head_dim: int) -> LowRank:
    """The same with rows in transformers' order: the first values of all pairs of a head, then the second ones."""
    if not head_dim or head_dim % 2 or len(module.b) % head_dim:
        raise UnsupportedModelError(
            f"{name}: its {len(module.b)} rows are in llama.cpp's order, by heads, and the model's heads are not alike: serve "
            "the adapter in peft's own form"
        )
    b = module.b.reshape(-1, head_dim // 2, 2, module.b.shape[1]).swapaxes(1, 2).reshape(module.b.shape)
    return replace(module, b=b, paired=False)


class _Layout:
    """The arrays of one adapter while its updates are added."""

    def __init__(
        self, room: AdapterPlan, rename: Callable[[str], str | None], dtype: torch.dtype, base: BaseReader, tensor_rank: int
    ) -> None:  # fmt: skip
        self._room, self._rename, self._dtype, self._base, self._tensor_rank = room, rename, dtype, base, tensor_rank
        self._matrices: dict[str, list[_TargetMatrix]] = {}
        self._biases: dict[str, list[_TargetMatrix]] = {}
        """Places by the name of a stored tensor that holds them."""
        for place in _sources(room):
            for stored in place.names:
                self._matrices.setdefault(stored, []).append(place)
            if place.bias is not None:
                self._biases.setdefault(place.bias.name, []).append(place)
        self._changed: dict[tuple[str, int, str], str] = {}
        """(target, index, "weight" or "bias") -> the update that changes it."""
        self.arrays: dict[str, TargetArrays] = {}
        self.experts = ExpertsLayout(room.experts, room.rank, dtype, tensor_rank)

    def add_low_rank(self, name: str, module: LowRank) -> None:
        known = self._rename(name)
        if known is not None and self.experts.add_matrix(name, module, known):
            return
        self._check_target(name, known)
        table = self._room.tables.get(EMBED)
        if table is not None and known == table.source.name:
            self._add_table(name, module, table)
            return
        places = [] if known is None else self._matrices.get(known, [])
        if not places:
            raise CheckpointError(
                f"{name}: the model has no linear layer of this name that adapters may change{HINT if 'expert' in name else ''}"
            )
        if module.base is not None:
            for place in places:
                self._check_copy(name, module.base(), place.source, place.target.role)
        covered = np.zeros(len(module.b), np.bool_)
        for place in places:
            rows = place.rows(name, module, known)
            covered[rows] = True
            arrays = self._open(name, place, "weight")
            b = torch.from_numpy(module.b[rows]) * module.scale
            bias = None if module.bias is None else torch.from_numpy(module.bias[rows]) * module.scale
            if module.magnitude is not None:
                gain = self._find_gain(place, module, b, torch.from_numpy(module.magnitude[rows]))
                b = b * gain[:, None]
                self._vectors(arrays, place)[0] += self._part(place, gain) - 1
                if not place.target.sums:
                    held = self._base_bias(place)
                    bias = held - gain * held
            if bias is not None:
                self._add_bias(arrays, place, bias)
            self._put(name, module, place, arrays, b)
        if not covered.all():
            raise UnsupportedModelError(f"{name}: some rows of this matrix are not of a linear layer that adapters may change")

    def _add_table(self, name: str, module: LowRank, table: TableTarget) -> None:
        """The embedding: B has a row for each token."""
        shape = (len(module.b), module.a.shape[1])
        if shape != table.source.shape:
            raise CheckpointError(
                f"{name}: an embedding of shape {list(shape)} is adapted, and the model's has {list(table.source.shape)}: the "
                "vocabulary was resized, or the adapter belongs to another model"
            )
        if module.magnitude is not None or module.bias is not None:
            raise UnsupportedModelError(f"{name}: DoRA and biases of embeddings are not served; {MERGE}")
        if module.base is not None:
            self._check_copy(name, module.base(), table.source, "embedding")
        room, rank = self._room.rank, len(module.a)
        a, b = torch.zeros(room, table.hidden, dtype=self._dtype), torch.zeros(table.vocab, room, dtype=self._dtype)
        scaled = torch.from_numpy(np.ascontiguousarray(module.a)) * module.scale
        check_range(name, module.scale, self._dtype, scaled, module.b)
        a[:rank], b[:, :rank] = scaled, torch.from_numpy(np.ascontiguousarray(module.b))
        result = {"table": b, "a": torch.eye(room, dtype=self._dtype), "b": a, "ranks": torch.tensor([rank], dtype=torch.int32)}
        self.arrays[EMBED] = TargetArrays(result, EXTENDED)

    def _check_copy(self, name: str, copy: np.ndarray, source: Source, role: Role) -> None:
        """CheckpointError if the adapter's copy of the base matrix is not the model's, but for rounding to bfloat16."""
        if copy.shape != source.shape or not np.allclose(copy, self._base(source, role).numpy(), rtol=2**-7, atol=1e-5):
            raise CheckpointError(
                f"{name}: the adapter holds a base matrix of shape {list(copy.shape)} that differs from the model's, of shape "
                f"{list(source.shape)}: its vocabulary was resized, or its base is another model. If it is the same, save the "
                "adapter without the copy (peft: save_pretrained(..., save_embedding_layers=False))"
            )

    def _check_target(self, name: str, known: str | None) -> None:
        if known is not None and not is_target(known.removesuffix(".bias"), self._room.modules):
            modules = ", ".join(self._room.modules or ())
            raise UnsupportedModelError(
                f"{name}: the engine has room for adapters of {modules} only (--lora-target-modules): add this module, or omit "
                "the flag"
            )

    def replace(self, name: str, update: Replaced) -> None:
        known = self._rename(name)
        for target in self._room.projections.values():
            for key, source in (("weight", target.weight), ("bias", target.bias)):
                if source is not None and source.name == known:
                    self._replace_projection(name, update, target, key, source)
                    return
        if known is None or known not in self._biases:
            raise UnsupportedModelError(
                f"{name}: whole tensors are replaced in classifiers, and biases in linear layers; this is neither; {MERGE}"
            )
        self._check_target(name, known)
        self._replace_bias(name, update, self._biases[known])

    def _replace_projection(self, name: str, update: Replaced, target: ProjectionTarget, key: str, source: Source) -> None:
        if update.values.shape != source.shape:
            raise CheckpointError(
                f"{name}: a tensor of shape {list(update.values.shape)} replaces the model's of shape {list(source.shape)}: "
                "the classes must be as many"
            )
        held = self.arrays.get(target.weight.name)
        if held is None:
            arrays = {"weight": self._base(target.weight, target.role), "set": torch.ones(1, dtype=torch.int32)}
            if target.bias is not None:
                arrays["bias"] = self._base(target.bias, "plain")
            held = self.arrays[target.weight.name] = TargetArrays(arrays, EXTENDED)
        held.arrays[key] = torch.from_numpy(update.values).to(self._dtype)

    def _replace_bias(self, name: str, update: Replaced, places: list[_TargetMatrix]) -> None:
        for place in places:
            assert place.bias is not None
            shape = place.bias.checkpoint_shape
            if update.values.shape != shape:
                raise CheckpointError(
                    f"{name}: the bias of shape {list(update.values.shape)} does not fit the model's of shape {list(shape)}: "
                    "the adapter belongs to another model"
                )
            arrays = self._open(name, place, "bias")
            first = place.bias.first
            values = torch.from_numpy(update.values[first : first + place.bias.shape[0]])
            self._add_bias(arrays, place, values - self._base_bias(place))

    def _open(self, name: str, place: _TargetMatrix, what: str) -> TargetArrays:
        """The arrays of a place that no other update changes in the same way."""
        if (other := self._changed.setdefault((place.name, place.index, what), name)) != name:
            raise CheckpointError(f"{name}: {other} names the same matrix of the model: keep one of the two")
        if place.name not in self.arrays:
            level = EXTENDED if place.name == HEAD else 0
            self.arrays[place.name] = TargetArrays.zeros(place.target, self._room.rank, self._dtype, level)
        return self.arrays[place.name]

    def _put(self, name: str, module: LowRank, place: _TargetMatrix, arrays: TargetArrays, b: torch.Tensor) -> None:
        """A, and B [outputs of the place, rank] with its scale, into the arrays."""
        rank, first = len(module.a), place.index * self._room.rank
        check_range(name, module.scale, self._dtype, module.a, b)
        columns = place.target.part(place.index, 1, self._tensor_rank)
        arrays.arrays["a"][first : first + rank] = torch.from_numpy(module.a[:, columns])
        arrays.arrays["b"][:rank, place.outputs] = self._part(place, b).T
        arrays.arrays["ranks"][place.index] = rank

    def _vectors(self, arrays: TargetArrays, place: _TargetMatrix) -> torch.Tensor:
        """f32[2, outputs of the place], a view."""
        arrays.level = EXTENDED
        held = arrays.arrays.setdefault("vectors", torch.zeros(2, sum(place.target.rows)))
        return held[:, place.outputs]

    def _part(self, place: _TargetMatrix, values: torch.Tensor) -> torch.Tensor:
        """This rank's outputs, of values [outputs of the matrix, ...]."""
        return values[place.target.part(place.index, 0, self._tensor_rank)]

    def _add_bias(self, arrays: TargetArrays, place: _TargetMatrix, bias: torch.Tensor) -> None:
        """Once, not once per rank, where ranks sum."""
        vectors = self._vectors(arrays, place)
        if not place.target.sums or self._tensor_rank == 0:
            vectors[1] += self._part(place, bias)

    def _find_gain(self, place: _TargetMatrix, module: LowRank, b: torch.Tensor, magnitude: torch.Tensor) -> torch.Tensor:
        """f32[outputs]: DoRA's magnitude over the norm of each row of W + B A. b: with its scale."""
        weight = self._base(place.source, place.target.role, served=True)
        norms = torch.addmm(weight, b, torch.from_numpy(module.a)).square().sum(1).sqrt()
        return magnitude / norms

    def _base_bias(self, place: _TargetMatrix) -> torch.Tensor:
        """f32[outputs] of the base model, zeros where it has none."""
        if place.target.biases and place.bias is None:
            raise UnsupportedModelError(f"{place.name}: this layer's bias is not of its matrices: DoRA is not served for it")
        if place.bias is None or place.bias.absent:
            return torch.zeros(place.source.shape[0])
        return self._base(place.bias, "plain")


@dataclass(frozen=True, slots=True)
class _TargetMatrix:
    """A matrix of a target."""

    name: str
    """Of the target."""
    target: Target
    index: int
    source: Source

    @property
    def bias(self) -> Source | None:
        """None: there is none, or one that is divided otherwise than the matrices."""
        return self.target.biases[self.index] if len(self.target.biases) == len(self.target.sources) else None

    @property
    def outputs(self) -> slice:
        """Its outputs among the target's."""
        first = sum(self.target.rows[: self.index])
        return slice(first, first + self.target.rows[self.index])

    @property
    def names(self) -> tuple[str, ...]:
        """Of the stored tensor that holds it."""
        if self.target.stored:
            return (self.target.stored,)
        return self.source.names

    def rows(self, name: str, module: LowRank, known: str | None) -> np.ndarray | slice:
        """Which rows of B, i64[outputs of the matrix] or a range of them, are this matrix's."""
        source, view = self.source, self.source.within
        if view is None or known in (source.name, self.target.stored):
            shape: tuple[int, ...] = source.checkpoint_shape
            rows: np.ndarray | slice = slice(source.first, source.first + source.shape[0])
        elif view.at is not None or view.flat or view.normed:
            raise UnsupportedModelError(f"{name}: adapters of this tensor, which is no matrix, are not served")
        else:
            shape = view.shape[::-1] if view.turned else view.shape
            rows = replace(view, turned=False).take(np.arange(shape[0])[:, None], source.shape[0])[:, 0]
        if (len(module.b), module.a.shape[1]) != shape:
            raise CheckpointError(
                f"{name}: A of shape {list(module.a.shape)} and B of shape {list(module.b.shape)} do not fit the model's "
                f"matrix of shape {list(shape)}: the adapter belongs to another model"
            )
        return rows


def _sources(room: AdapterPlan) -> Iterator[_TargetMatrix]:
    for name, target in room.targets.items():
        for i, source in enumerate(target.sources):
            yield _TargetMatrix(name, target, i, source)
