"""From checkpoint files to the parameters a model declares: names and shapes checked first, then only the needed bytes read.

Values reach anonymous host memory one parameter at a time: packed straight from the mapped file where a kernel does that,
else read, converted, handed to the device, packed.
"""

from __future__ import annotations

import functools
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from thalweg.checkpoint.weights import open_weights
from thalweg.errors import ConfigError, UnsupportedModelError
from thalweg.hal.device import Device, FileArray
from thalweg.hal.ops.quantise import at_rest
from thalweg.hal.step import Params
from thalweg.hal.weights import DENSE, INPUTS, QTensor
from thalweg.host import heap
from thalweg.models import sizes
from thalweg.models.build import Model
from thalweg.models.files import FLOATS, TYPES, Files
from thalweg.models.weights import ParamSpec, expert_span, walk
from thalweg.options.weights import LOAD_FORMATS
from thalweg.quantization.online import round_weight

DUMMY_STD = 0.02
TRIM = 1 << 21
"""Weights unpacked or rounded between returns of freed memory. Their temporaries are 4 bytes each and more."""
Reader = Callable[[ParamSpec, int], Any]
"""One rank's share of a parameter, on the host or on the device: values, or codes where a checkpoint keeps those."""
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

    load_format: a name of `options.weights.LOAD_FORMATS`. All read the files of `path` but "dummy", which draws reproducible
    random values (normal, std 0.02; norms are one) and reads none. ranks: those the device drives, of model.mesh.tensor.size:
    it holds their shares of divided parameters.
    CheckpointError, before any weight is read, names missing and unexpected tensors and those of the wrong shape or dtype."""
    packed: Packer = _none
    lying: Callable[[ParamSpec, int], FileArray | None] = _none
    read: Reader
    if load_format == "dummy":
        read = _dummy_reader(model, seed, device)
    elif load_format in LOAD_FORMATS:
        files = open_files(model, path, device, load_format)
        read, packed, lying = files.read, files.read_packed, files.locate
    else:
        raise ConfigError(f"load_format: unknown format {load_format!r}; supported: {', '.join(LOAD_FORMATS)}")
    specs = list(walk(model.specs))
    shared = _shared_keys([s for _, s in specs], model.mesh.tensor.size)
    arriving = _DirectLoads(device, specs, lying, shared, model.mesh.tensor.size, ranks)
    try:
        return _load(model, specs, device, read, packed, arriving, shared, progress, ranks)
    finally:
        arriving.close()


def open_files(model: Model, path: str | Path, device: Device, load_format: str) -> Files:
    """The reader of a model's parameters. UnsupportedModelError if no files hold them."""
    if load_format == "dummy":
        raise UnsupportedModelError("load_format: the model has random weights (dummy), and no files to read this from")
    found: Files = (model.reader or Files)(model, open_weights(path, model.spec.folders), device)
    return found


def _load(
    model: Model, specs: Sequence[tuple[tuple[str, ...], ParamSpec]], device: Device, read: Reader, packed: Packer,
    arriving: _DirectLoads, shared: set[tuple[Any, ...]], progress: bool, ranks: Sequence[int],
) -> Params:  # fmt: skip

    def value(spec: ParamSpec, rank: int) -> Any:
        return cut_share(spec.make(), spec, rank, model.mesh.tensor.size) if spec.make else read(spec, rank)

    spent = 0
    placed: dict[Any, Any] = {}  # shared values: by key as they are, by key, `pack` and form as that made them
    params: dict[Any, Any] = {}
    for keys, spec in tqdm(specs, desc="Loading weights", disable=None if progress else True, leave=False):
        key = _key(spec, model.mesh.tensor.size)
        spent += sizes.values(spec.weight) if spec.format != DENSE else 0
        if spent > TRIM:
            heap.trim()
            spent = 0
        node = params
        for k in keys[:-1]:
            node = node.setdefault(k, {})
        result = (key, spec.pack, spec.format)
        if result in placed:
            node[keys[-1]] = placed[result]
            continue
        if spec.weight.is_divided and len(ranks) > 1:
            puts = [functools.partial(device.put_on, rank=i) for i in range(len(ranks))]
            shares = [_place_param(spec, value(spec, r), put) for r, put in zip(ranks, puts, strict=True)]
            node[keys[-1]] = device.join(shares)
        elif (weight := packed(spec, ranks[0])) is not None:
            node[keys[-1]] = weight
        elif spec.format != DENSE:
            values = arriving.take(spec)
            values = read(spec, ranks[0]) if values is None else values
            node[keys[-1]] = _place_param(spec, values, device.put, device.rounds)
        else:
            array = placed.get(key)
            if array is None:
                array = arriving.take(spec)
            if array is None:
                array = device.put(value(spec, ranks[0]))
            if key in shared:
                placed[key] = array
            node[keys[-1]] = _place_param(spec, array, lambda a: a)
        if key in shared:
            placed[result] = node[keys[-1]]
    heap.trim()
    return params


class _DirectLoads:
    """Parameters that the device reads from files itself, in order of their requests. Empty where the device does not, or where
    values are converted on the host."""

    def __init__(
        self, device: Device, specs: Iterable[tuple[Any, ParamSpec]], lying: Callable[[ParamSpec, int], FileArray | None],
        shared: set[tuple[Any, ...]], size: int, ranks: Sequence[int],
    ) -> None:  # fmt: skip
        self._coming: deque[ParamSpec] = deque()
        found, seen = [], set()
        for _, spec in specs:
            key = _key(spec, size)
            once = key if spec.format == DENSE else (key, spec.pack, spec.format)
            if once in seen or (spec.weight.is_divided and len(ranks) > 1) or (spec.format != DENSE and not device.rounds):
                continue
            if key in shared:
                seen.add(once)
            if (where := lying(spec, ranks[0])) is not None:
                found.append(where)
                self._coming.append(spec)
        self._arrays = device.arrive(found)
        if self._arrays is None:
            self._coming.clear()

    def take(self, spec: ParamSpec) -> Any:
        """Its values on the device, or None: read it."""
        while self._arrays is not None and any(s is spec for s in self._coming):
            array = next(self._arrays)
            if self._coming.popleft() is spec:
                return array
        return None

    def close(self) -> None:
        if self._arrays is not None:
            self._arrays.close()
            self._arrays = None


def _place_param(spec: ParamSpec, values: Any, put: Callable[[Any], Any], rounds: bool = False) -> Any:
    """Values as the kernel wants them: rounded where they were read (rounds: on the device), put there, and packed."""
    if spec.pack is None:
        return put(values)
    w = values if isinstance(values, QTensor) else QTensor(DENSE, tuple(values.shape), {"weight": values})
    if w.format != spec.format:
        if rounds and w.format == DENSE:
            w = QTensor(DENSE, w.shape, {"weight": put(w.data["weight"])})
        w = round_weight(w, spec.format)
    if w.format != DENSE and spec.pack.at_rest:
        w = QTensor(w.format, w.shape, at_rest(w))
    data = {name: put(a) for name, a in w.data.items()}
    inputs = {name: data.pop(name).reshape(-1) for name in INPUTS if name in data}
    packed = spec.pack(QTensor(w.format.product, w.shape, data, spec.matrices))
    return {"weight": packed, **inputs} if inputs else packed


def _key(spec: ParamSpec, size: int) -> tuple[Any, ...]:
    """Parameters with equal keys hold equal values: a tied embedding is read and placed once."""
    return (spec.sources, spec.dtype, None if size == 1 else spec.shard)


def _shared_keys(specs: list[ParamSpec], size: int) -> set[tuple[Any, ...]]:
    keys = Counter(_key(s, size) for s in specs if s.sources)
    return {k for k, times in keys.items() if times > 1}


def _none(spec: ParamSpec, rank: int) -> None:
    return None


def _dummy_reader(model: Model, seed: int, device: Device) -> Reader:
    """Values are drawn on the device if it does that, else here."""

    def read(spec: ParamSpec, rank: int) -> Any:
        if spec.weight.fill != "normal":
            shape = spec.shape(model.mesh.tensor.size)
            return torch.full(shape, 1.0 if spec.weight.fill == "ones" else 0.0, dtype=TYPES[spec.dtype])
        # Drawn whole and cut, so that a model has the same values on any number of ranks. A parameter's own seed, so that they
        # do not depend on the order of loading.
        whole = spec.shape(1)
        own = ((seed & 0xFFFFFFFF) << 31) ^ zlib.crc32(spec.sources[0].name.encode())
        drawn = device.normal(whole, spec.dtype, std=DUMMY_STD, seed=own)
        if drawn is None:
            generator = torch.Generator().manual_seed(own)
            drawn = torch.empty(whole, dtype=FLOATS[spec.dtype]).normal_(0, DUMMY_STD, generator=generator)
        return cut_share(drawn, spec, rank, model.mesh.tensor.size)

    return read


def cut_share(whole: Any, spec: ParamSpec, rank: int, size: int) -> Any:
    """One rank's share of a whole parameter, in new memory."""
    if size == 1 or not spec.weight.is_divided:
        return whole
    if spec.weight.experts:
        rows = len(whole) // spec.weight.experts
        first = expert_span(spec.weight.experts, rank, size)[0] * rows
        return whole[np.arange(first, first + spec.shape(size)[0])]
    assert spec.shard is not None
    parts = [s.shard(spec.shard, rank, size) for s in spec.sources]
    if spec.shard:
        picked = np.arange(parts[0].start, parts[0].stop)
        return whole[(slice(None),) * spec.shard + (picked,)]
    firsts = np.cumsum([0, *(s.shape[0] for s in spec.sources)])
    return whole[np.concatenate([first + np.arange(p.start, p.stop) for first, p in zip(firsts, parts, strict=False)])]
