"""From checkpoint files to the parameters a model declares: names and shapes checked first, then only the needed bytes read.

Values reach anonymous host memory one parameter at a time: packed straight from the mapped file where a kernel does that,
else read, converted, handed to the device, packed.
"""

from __future__ import annotations

import functools
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from thalweg.checkpoint.safetensors import Checkpoint, open_checkpoint
from thalweg.errors import CheckpointError, ConfigError
from thalweg.hal.op import KEEP_DENSE
from thalweg.hal.platform import Device
from thalweg.hal.step import Params
from thalweg.hal.weights import DENSE, QTensor
from thalweg.models.build import Model
from thalweg.models.weights import ParamSpec, Source, divided, walk
from thalweg.quantization.online import rounded

FLOATS = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
DUMMY_STD = 0.02
CHUNK = 1 << 22
"""Values converted at once."""
Reader = Callable[[ParamSpec, int], Any]
"""One rank's share of a parameter, on the host or on the device."""
Packer = Callable[[ParamSpec, int], Any]
"""The same packed straight from the files; None where values have to be converted or made."""


def load_params(
    model: Model,
    path: str | Path,
    device: Device,
    *,
    load_format: str = "auto",
    seed: int = 0,
    progress: bool = True,
    ranks: Sequence[int] = (0,),
) -> Params:
    """Nested dicts with the keys of `model.specs`, on the device and packed for its kernels.

    load_format: "auto" and "safetensors" read the files of `path`; "dummy" draws reproducible random values (normal, std
    0.02; norms are one) and reads none. ranks: those the device drives, of model.comm.size: it holds their shares of divided
    parameters.
    CheckpointError, before any weight is read, names missing and unexpected tensors and those of the wrong shape or dtype."""
    packed: Packer = _none
    if load_format == "dummy":
        read = _dummy_reader(model, seed, device)
    elif load_format in ("auto", "safetensors"):
        read, packed = _file_reader(model, open_checkpoint(path), device)
    else:
        raise ConfigError(f"load_format: {load_format!r} is none of auto, safetensors, dummy")
    specs = list(walk(model.specs))
    shared = _shared([s for _, s in specs], model.comm.size)
    placed: dict[Any, Any] = {}  # shared values: by key as they are, by key and `pack` as that made them
    params: dict[Any, Any] = {}
    for keys, spec in tqdm(specs, desc="Loading weights", disable=None if progress else True, leave=False):
        key = _key(spec, model.comm.size)
        node = params
        for k in keys[:-1]:
            node = node.setdefault(k, {})
        if (key, spec.pack) in placed and spec.format == DENSE:
            node[keys[-1]] = placed[key, spec.pack]
            continue
        if spec.shard is not None and len(ranks) > 1:
            puts = [functools.partial(device.put_on, rank=i) for i in range(len(ranks))]
            shares = [_placed(spec, read(spec, r), put) for r, put in zip(ranks, puts, strict=True)]
            node[keys[-1]] = device.join(shares)
        elif (weight := packed(spec, ranks[0])) is not None:
            node[keys[-1]] = weight
        elif spec.format != DENSE:
            node[keys[-1]] = _placed(spec, read(spec, ranks[0]), device.put)
        else:
            array = placed.get(key)
            if array is None:
                array = device.put(spec.make() if spec.make else read(spec, ranks[0]))
                if key in shared:
                    placed[key] = array
            node[keys[-1]] = _placed(spec, array, lambda a: a)
        if key in shared and spec.format == DENSE:
            placed[key, spec.pack] = node[keys[-1]]
    return params


def _placed(spec: ParamSpec, values: Any, put: Callable[[Any], Any]) -> Any:
    """Values as the kernel wants them: rounded where they were read, then put on the device, then packed."""
    if spec.pack is None:
        return put(values)
    w = QTensor(DENSE, tuple(values.shape), {"weight": values})
    if spec.format != DENSE:
        w = rounded(w, spec.format)
    return spec.pack(QTensor(w.format, w.shape, {name: put(a) for name, a in w.data.items()}))


def _key(spec: ParamSpec, size: int) -> tuple[Any, ...]:
    """Parameters with equal keys hold equal values: a tied embedding is read and placed once."""
    return (spec.sources, spec.dtype, None if size == 1 else spec.shard)


def _shared(specs: list[ParamSpec], size: int) -> set[tuple[Any, ...]]:
    keys = Counter(_key(s, size) for s in specs if s.sources)
    return {k for k, times in keys.items() if times > 1}


def _none(spec: ParamSpec, rank: int) -> None:
    return None


def _file_reader(model: Model, checkpoint: Checkpoint, device: Device) -> tuple[Reader, Packer]:
    stored = {known: name for name in checkpoint.names if (known := model.rename(name)) is not None}
    _check(model, checkpoint, stored)
    size = model.comm.size

    def dtype(source: Source) -> str:
        return checkpoint.entry(stored[source.name])[0]

    def part(spec: ParamSpec, source: Source, rank: int) -> np.ndarray:
        return checkpoint.read(stored[source.name], *_share(source, spec.shard, rank, size))

    def read(spec: ParamSpec, rank: int) -> torch.Tensor:
        kept = spec.pack is None or (spec.format == DENSE and spec.pack in KEEP_DENSE)
        out = device.blank(spec.shape(size), spec.dtype) if kept else None
        if out is None:
            out = torch.empty(spec.shape(size), dtype=FLOATS[spec.dtype])
        at = 0
        for source in spec.sources:
            values = part(spec, source, rank)
            _copy(out[at : at + len(values)], values, FLOATS[dtype(source)])
            at += len(values)
            checkpoint.forget(stored[source.name])
        return out

    def packed(spec: ParamSpec, rank: int) -> Any:
        if spec.pack_parts is None or any(dtype(s) != spec.dtype for s in spec.sources):
            return None
        made = spec.pack_parts([part(spec, s, rank) for s in spec.sources], spec.format)
        for s in spec.sources if made is not None else ():
            checkpoint.forget(stored[s.name])
        return made

    return read, packed


def _share(source: Source, shard: int | None, rank: int, size: int) -> tuple[slice | None, slice | None]:
    """Rows and columns of one rank's share of a tensor."""
    mine: list[slice | None] = [None, None]
    if source.rows:
        mine[0] = slice(source.first, source.first + source.shape[0])
    if shard is not None and size > 1:
        n = divided(source.shape, shard, size)[shard]
        at = rank * n + (source.first if shard == 0 else 0)
        mine[shard] = slice(at, at + n)
    return mine[0], mine[1]


def _copy(out: torch.Tensor, part: np.ndarray, dtype: torch.dtype) -> None:
    """Stored values into their place, converted if need be. Conversion goes some rows at a time: fresh memory is dear."""
    if dtype == out.dtype:
        raw = torch.uint16 if dtype == torch.bfloat16 else dtype  # numpy has no bfloat16
        out.view(raw).numpy()[...] = part
        return
    rows = max(1, CHUNK * part.shape[0] // max(1, part.size))
    for i in range(0, part.shape[0], rows):
        out[i : i + rows] = torch.from_numpy(part[i : i + rows].copy()).view(dtype)


def _check(model: Model, checkpoint: Checkpoint, stored: Mapping[str, str]) -> None:
    """Every declared tensor is there, in shape and kind, and nothing else is."""
    wanted = {s.name: s for _, spec in walk(model.specs) for s in spec.sources}
    problems = []
    if missing := sorted(wanted.keys() - stored.keys()):
        problems.append(f"lacks {_some(missing)}")
        if missing == ["lm_head.weight"]:
            problems[-1] += ' (if its embedding is the output matrix, config.json must say "tie_word_embeddings": true)'
    if extra := sorted(stored[n] for n in stored.keys() - wanted.keys()):
        problems.append(f"has {_some(extra)}, which the architecture of config.json does not")
    for name in sorted(wanted.keys() & stored.keys()):
        dtype, shape = checkpoint.entry(stored[name])
        if shape != wanted[name].stored:
            problems.append(f"{stored[name]} has shape {list(shape)}, config.json makes it {list(wanted[name].stored)}")
        elif dtype not in FLOATS:
            problems.append(f"{stored[name]} has dtype {dtype}; this version reads {', '.join(FLOATS)}")
    if problems:
        more = f"; and {len(problems) - 5} more problems" if len(problems) > 5 else ""
        raise CheckpointError(f"{checkpoint.path}: the weights do not fit: " + "; ".join(problems[:5]) + more)


def _dummy_reader(model: Model, seed: int, device: Device) -> Reader:
    """Values are drawn on the device if it does that, else here."""

    def read(spec: ParamSpec, rank: int) -> Any:
        shape = spec.shape(model.comm.size)
        if spec.weight.fill != "normal":
            return torch.full(shape, 1.0 if spec.weight.fill == "ones" else 0.0, dtype=FLOATS[spec.dtype])
        # A parameter's own seed on each rank, so that its values do not depend on the order of loading.
        own = ((seed & 0xFFFFFFFF) << 31) ^ zlib.crc32(f"{spec.sources[0].name}{f' {rank}' if rank else ''}".encode())
        drawn = device.normal(shape, spec.dtype, std=DUMMY_STD, seed=own)
        if drawn is not None:
            return drawn
        return torch.empty(shape, dtype=FLOATS[spec.dtype]).normal_(0, DUMMY_STD, generator=torch.Generator().manual_seed(own))

    return read


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
