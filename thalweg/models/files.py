"""A model's parameters in checkpoint files: every name and shape checked first, then the needed bytes read, as dense values
or, where the checkpoint is quantised, in the canonical form that its format reads."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from thalweg.checkpoint.weights import Weights
from thalweg.errors import CheckpointError
from thalweg.hal.device import Device, FileArray
from thalweg.hal.ops.quantise import dequantise
from thalweg.hal.weights import DENSE, ONCE, PER_GROUP, QTensor, WeightFormat
from thalweg.models.decoder import Decoder
from thalweg.models.merged_adapter import merge
from thalweg.models.weights import ParamSpec, Role, Source, TensorView, Weight, walk
from thalweg.quantization.format import CACHE, Format
from thalweg.quantization.online import concat_rows, round_weight

logger = logging.getLogger(__name__)
FLOATS = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
INTEGERS = {"int64": torch.int64, "int32": torch.int32}
"""Of tables that a layer indexes with."""
TYPES = {**FLOATS, **INTEGERS}
CHUNK = 1 << 22
"""Values converted at once."""


class Files:
    """CheckpointError, before any weight is read, names missing and unexpected tensors and those of the wrong shape or
    dtype."""

    def __init__(self, model: Decoder, checkpoint: Weights, device: Device) -> None:
        self._checkpoint, self._device, self._size = checkpoint, device, model.mesh.tensor.size
        self._format = model.formats if isinstance(model.formats, Format) else None
        self._stored = _stored_names(checkpoint, model)
        self._adapted = merge(model.spec.adapter, self._stored, model.rename)
        if self._format is not None and self._adapted.names:
            raise CheckpointError(f"{checkpoint.path}: this version adds adapters to dense matrices only")
        self._check(model)

    def read(self, spec: ParamSpec, rank: int) -> torch.Tensor | QTensor:
        """One rank's share of a parameter, on the host: values in spec.dtype, or codes as the checkpoint has them."""
        spec = spec.of_rank(rank, self._size)
        if self._format is not None and spec.format != DENSE:
            return self._codes(spec, rank)
        kept = spec.pack is None or (spec.format == DENSE and spec.pack.keeps_dense)
        out = self._device.blank(spec.shape(self._size), spec.dtype) if kept else None
        if out is None:
            out = torch.empty(spec.shape(self._size), dtype=TYPES[spec.dtype])
        at = 0
        for source in spec.sources:
            if source.absent:
                rows = source.shard_shape(spec.shard, self._size)[0]
                out[at : at + rows], at = 0, at + rows
                continue
            at += self._fill(out[at:], spec, source, rank)
        return out

    def _fill(self, out: torch.Tensor, spec: ParamSpec, source: Source, rank: int) -> int:
        """One rank's share of a source into the first rows of `out`. Returns how many."""
        values = self._values(spec, source, rank)
        part = out[: len(values)]
        _copy(part, values, TYPES[self._dtype(source)])
        if _has_norm(source):
            part.copy_(F.normalize(part.to(torch.float32), dim=-1))
        if source.name in self._adapted:
            share = _share(source, spec.shard, rank, self._size)
            part.copy_(part.to(torch.float32) + self._adapted.change(source.name, self._tensor, *share))
        self._forget(source)
        return len(values)

    def read_dense(self, source: Source, role: Role, form: WeightFormat = DENSE) -> torch.Tensor:
        """One source, whole and dequantised: float32 on the host. form: to which a dense tensor is rounded first, as it is when
        the model is loaded. Any thread may call it."""
        spec = ParamSpec(Weight((source,), role=role), "float32")
        if self._format is not None and (form := self._format.of(role, source.name)) != DENSE:
            return _undone(self._codes(replace(spec, format=form), 0))
        out = torch.empty(source.shape)
        self._fill(out, spec, source, 0)
        if form == DENSE:
            return out
        return _undone(round_weight(QTensor(DENSE, (out.shape[0], out.shape[1]), {"weight": out}), form))

    def locate(self, spec: ParamSpec, rank: int) -> FileArray | None:
        """Where one rank's share of a parameter lies in files, if it lies there byte for byte as `read` would give it."""
        if spec.make is not None or not spec.sources or (self._format is not None and spec.format != DENSE):
            return None
        spec = spec.of_rank(rank, self._size)
        parts = []
        for source in spec.sources:
            if source.absent or source.name not in self._stored or self._alters(spec, source):
                return None
            rows, columns = _share(source, spec.shard, rank, self._size)
            span = None if columns is not None else self._checkpoint.span(self._stored[source.name], rows)
            if span is None:
                return None
            parts.append(span)
        shape = spec.shape(self._size)
        whole = sum(p.count for p in parts) == math.prod(shape) * TYPES[spec.dtype].itemsize
        return FileArray(shape, spec.dtype, parts) if whole else None

    def read_packed(self, spec: ParamSpec, rank: int) -> Any:
        """The same packed straight from the files; None where values have to be converted or codes read."""
        spec = spec.of_rank(rank, self._size)
        if self._format is not None and spec.format != DENSE:
            return self._blocks(spec, rank, self._format)
        mapped = spec.pack.mapped if spec.pack else None
        if mapped is None:
            return None
        if any(self._alters(spec, s) for s in spec.sources):
            return None
        values = [self._values(spec, s, rank) for s in spec.sources]
        if any(s.name not in self._stored and not v.flags.c_contiguous for s, v in zip(spec.sources, values, strict=True)):
            return None
        result = mapped(values, spec.format)
        for s in spec.sources if result is not None else ():
            self._forget(s)
        return result

    def _blocks(self, spec: ParamSpec, rank: int, format: Format) -> Any:
        """The same of a file's blocks, which the kernel unpacks; None where it does not."""
        unpack = spec.pack.blocks if spec.pack else None
        if unpack is None or any(s.absent for s in spec.sources):
            return None
        kind, *others = {format.blocks(s.name.removesuffix(".weight")) for s in spec.sources}
        shares = [_share(s, spec.shard, rank, self._size) for s in spec.sources]
        if not kind or others or any(columns is not None for _, columns in shares):
            return None
        names = [self._stored[s.name] for s in spec.sources]
        values = [self._checkpoint.read(name, rows) for name, (rows, _) in zip(names, shares, strict=True)]
        result = unpack(values, kind, spec.shape(self._size)[1], spec.format)
        for name in names if result is not None else ():
            self._checkpoint.forget(name)
        return result

    def _place(self, source: Source) -> tuple[str, TensorView | None]:
        """The stored tensor that holds a source, and where in it, if it holds more."""
        view = None if source.name in self._stored else source.within
        return self._stored[view.name if view else source.name], view

    def _forget(self, source: Source) -> None:
        whole = self._quantized_source(source)
        for name in (self._place(source)[0],) if whole is None else self._parts_of(whole.name.removesuffix(".weight"), whole):
            self._checkpoint.forget(name)

    def _quantized_source(self, source: Source) -> Source | None:
        """The quantised matrix with the rows of a dense source, where the checkpoint has no tensor of its name. A matrix that
        the model holds dense (a router) is its own, where the files have it in codes."""
        view = source.within
        if self._format is None:
            return None
        if view is None:
            layer = source.name.removesuffix(".weight")
            coded = len(source.shape) == 2 and self._format.mark(layer) is not None and self._format.scheme(layer) is not None
            return source if coded else None
        if not view.run or source.name in self._stored:
            return None
        return None if self._format.of("linear", view.name) == DENSE else Source(view.name, view.shape)

    def _dtype(self, source: Source) -> str:
        if self._quantized_source(source) is not None:
            return "float32"
        return self._checkpoint.entry(self._place(source)[0])[0]

    def _alters(self, spec: ParamSpec, source: Source) -> bool:
        """Are a parameter's values others than those that the files have of this source?"""
        altered = _has_norm(source) or source.name in self._adapted or self._quantized_source(source) is not None
        return altered or self._dtype(source) != spec.dtype

    def _values(self, spec: ParamSpec, source: Source, rank: int) -> np.ndarray:
        (rows, columns), coded = _share(source, spec.shard, rank, self._size), self._quantized_source(source)
        if coded is not None:
            whole: np.ndarray = _undone(self._read_qtensor(coded)).numpy()
            if source.within is not None:
                whole = source.within.take(whole, source.shape[0])
        else:
            name, view = self._place(source)
            if view is None:
                return self._checkpoint.read(name, rows, columns)
            whole = view.take(self._checkpoint.read(name), source.shape[0])
        mine = whole if rows is None else whole[rows]
        return mine if columns is None else mine[:, columns]

    def _codes(self, spec: ParamSpec, rank: int) -> QTensor:
        """Each source read whole by the format, cut to the rank's share, and joined: scales have a row for every output."""
        assert self._format is not None
        parts = []
        for source in spec.sources:
            layer = source.name.removesuffix(".weight")
            whole = self._read_qtensor(source)
            rows, columns = _share(source, spec.shard, rank, self._size)
            parts.append(_cut(whole, rows, columns, source.name))
            for name in self._parts_of(layer, source):
                self._checkpoint.forget(name)
        data = concat_rows([p.data for p in parts])
        if not spec.format.own_scale:  # a product that rounds no inputs
            data.pop("input_scale", None)
        outputs, inputs = spec.shape(self._size)
        return QTensor(spec.format, (outputs, inputs), data)

    def _read_qtensor(self, source: Source) -> QTensor:
        """The whole of a quantised tensor, in canonical form."""
        assert self._format is not None
        layer = source.name.removesuffix(".weight")
        return self._format.read(layer, _matrix(source), self._get(layer, source))

    def _get(self, layer: str, source: Source) -> Any:
        assert self._format is not None
        parts = self._format.parts(layer, _matrix(source))

        def get(suffix: str) -> torch.Tensor:
            part = parts[suffix]
            name = self._stored[part.name or f"{layer}.{suffix}"]
            values = self._checkpoint.read(name)
            return as_tensor(values if part.at is None else values[part.at], self._checkpoint.entry(name)[0])

        return get

    def _parts_of(self, layer: str, source: Source) -> Iterator[str]:
        assert self._format is not None
        for suffix, part in self._format.parts(layer, _matrix(source)).items():
            if (name := self._stored.get(part.name or f"{layer}.{suffix}")) is not None:
                yield name

    def _tensor(self, name: str) -> torch.Tensor:
        return as_tensor(self._checkpoint.read(name), self._checkpoint.entry(name)[0])

    def _check(self, model: Decoder) -> None:
        """Every declared tensor is there, in shape and kind, and nothing else is."""
        wanted, problems = dict(self._expected_tensors(model)), list[str]()
        stored = {known: name for known, name in self._stored.items() if known not in self._adapted.names}
        missing = sorted(n for n, (_, optional, _) in wanted.items() if n not in stored and not optional)
        if missing:
            problems.append(f"lacks {some(missing)}")
            if missing == ["lm_head.weight"]:
                problems[-1] += ' (if its embedding is the output matrix, config.json must say "tie_word_embeddings": true)'
        extra = sorted(stored[n] for n in stored.keys() - wanted.keys() if not (self._format and self._format.ignores(n)))
        unread = sorted(stored[n] for n in stored.keys() - wanted.keys() - model.cache_scales if CACHE.search(n))
        if unread and self._format is not None:
            logger.warning(
                "%s of the checkpoint are not used: of such tensors this version takes the scales of keys and values, where "
                "those are cached in float8 (--kv-cache-dtype fp8)", some(unread),
            )  # fmt: skip
        if extra:
            problems.append(f"has {some(extra)}, which the architecture of config.json does not")
        for name in sorted(wanted.keys() & stored.keys()):
            dtype, shape = self._checkpoint.entry(stored[name])
            shapes, _, dtypes = wanted[name]
            if shape not in shapes:
                problems.append(f"{stored[name]} has shape {list(shape)}, config.json makes it {list(shapes[0])}")
            elif dtypes and dtype not in dtypes:
                problems.append(f"{stored[name]} has dtype {dtype}; this version reads {', '.join(dtypes)}")
        if problems:
            more = f"; and {len(problems) - 5} more problems" if len(problems) > 5 else ""
            raise CheckpointError(f"{self._checkpoint.path}: the weights do not fit: " + "; ".join(problems[:5]) + more)

    def _expected_tensors(
        self, model: Decoder
    ) -> Iterator[tuple[str, tuple[tuple[tuple[int, ...], ...], bool, tuple[str, ...]]]]:
        """Tensor's name -> (shapes it may have, may it be absent, dtypes it may have)."""
        for _, spec in walk(model.specs):
            dtypes = tuple(INTEGERS if spec.dtype in INTEGERS else FLOATS)
            for s in spec.sources:
                if s.absent:
                    continue
                coded = self._quantized_source(s) if spec.format == DENSE else None
                if coded is not None:
                    yield from self._wanted_parts(coded)
                elif (
                    (self._format is None or spec.format == DENSE)
                    and s.within is not None
                    and s.name not in self._stored
                    and (s.within.run or s.within.name in self._stored)
                ):
                    yield s.within.name, ((s.within.shape,), False, dtypes)
                elif self._format is None or spec.format == DENSE:
                    yield s.name, ((s.checkpoint_shape,), False, dtypes)
                else:
                    yield from self._wanted_parts(s)

    def _wanted_parts(self, source: Source) -> Iterator[tuple[str, tuple[tuple[tuple[int, ...], ...], bool, tuple[str, ...]]]]:
        assert self._format is not None
        layer = source.name.removesuffix(".weight")
        for suffix, part in self._format.parts(layer, _matrix(source)).items():
            yield part.name or f"{layer}.{suffix}", (part.shapes, part.optional, part.dtypes)


def _stored_names(checkpoint: Weights, model: Decoder) -> dict[str, str]:
    """Names that layers use -> names of the files. CheckpointError where two tensors of the files have one name there, and
    differ."""
    found: dict[str, str] = {}
    for name in checkpoint.names:
        known = model.rename(name)
        first = name if known is None else found.setdefault(known, name)
        if first == name:
            continue
        one, other = (checkpoint.read(n).reshape(-1).view(np.uint8) for n in (first, name))
        if checkpoint.entry(first) != checkpoint.entry(name) or not np.array_equal(one, other):
            raise CheckpointError(
                f"{checkpoint.path}: {first} and {name} are the same weight of the model, and they differ: remove the wrong one"
            )
    return found


def _matrix(source: Source) -> tuple[int, int]:
    rows, columns = source.checkpoint_shape
    return rows, columns


def _has_norm(source: Source) -> bool:
    return source.within is not None and source.within.normed


def _share(source: Source, shard: int | None, rank: int, size: int) -> tuple[slice | None, slice | None]:
    """Rows and columns of one rank's share of a tensor."""
    mine: list[slice | None] = [None, None]
    if source.rows:
        mine[0] = slice(source.first, source.first + source.shape[0])
    if shard is not None and size > 1:
        part, first = source.shard(shard, rank, size), source.first if shard == 0 else 0
        mine[shard] = slice(first + part.start, first + part.stop)
    return mine[0], mine[1]


def _cut(w: QTensor, rows: slice | None, columns: slice | None, name: str) -> QTensor:
    """Some rows and columns of a quantised weight. CheckpointError where columns would cut a group in two, or are no longer
    those of a rank's inputs."""
    data = {key: a if rows is None or key in ONCE else a[rows] for key, a in w.data.items()}
    if columns is not None:
        group = w.format.group
        if w.format.reordered:
            raise CheckpointError(
                f"{name}: its inputs are reordered (act-order), and so cannot be divided among ranks: set "
                "tensor_parallel_size to 1, or tp_invariant, which divides no inputs"
            )
        if group > 0 and (columns.start % group or columns.stop % group):
            raise CheckpointError(
                f"{name}: its groups of {group} inputs do not divide among ranks: lower tensor_parallel_size, or set "
                "tp_invariant, which divides no inputs"
            )
        cut = dict.fromkeys(("codes", "in_scale"), columns)
        if group > 0:
            cut |= {key: slice(columns.start // group, columns.stop // group) for key in PER_GROUP}
        data = {key: a[:, cut[key]] if key in cut else a for key, a in data.items()}
    shape = data["codes"].shape
    return QTensor(w.format, (shape[0], shape[1]), data)


def _undone(w: QTensor) -> torch.Tensor:
    """The float32 matrix that maps a layer's plain inputs as w maps them reordered and smoothed."""
    dense = dequantise(w.data, w.format.group, torch.float32)
    if "in_scale" in w.data:
        dense = dense * w.data["in_scale"].reshape(1, -1)
    if "perm" in w.data:
        dense = torch.empty_like(dense).index_copy_(1, w.data["perm"].reshape(-1).long(), dense)
    return dense


def as_tensor(values: np.ndarray, dtype: str) -> torch.Tensor:
    """Stored values as a tensor of the stored dtype, which numpy may lack."""
    raw = torch.from_numpy(np.require(values, requirements=["C", "ALIGNED"]).copy())
    return raw.view(getattr(torch, dtype)) if values.ndim else raw.reshape(1).view(getattr(torch, dtype)).reshape(())


def _copy(out: torch.Tensor, part: np.ndarray, dtype: torch.dtype) -> None:
    """Stored values into their place, converted if need be. Conversion goes some rows at a time: page faults on new memory
    are expensive."""
    if dtype == out.dtype:
        raw = torch.uint16 if dtype == torch.bfloat16 else dtype  # numpy has no bfloat16
        out.view(raw).numpy()[...] = part
        return
    rows = max(1, CHUNK * part.shape[0] // max(1, part.size))
    for i in range(0, part.shape[0], rows):
        out[i : i + rows] = torch.from_numpy(part[i : i + rows].copy()).view(dtype)


def some(names: list[str], most: int = 4) -> str:
    """Names for a message: the first `most`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
