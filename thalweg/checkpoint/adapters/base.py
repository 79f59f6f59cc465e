"""Adapters independent of their file format, and helpers of the formats' readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np

from thalweg.checkpoint.safetensors import Shard
from thalweg.errors import CheckpointError

FLOATS = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True, slots=True)
class LowRank:
    """The update of one matrix of the base model [outputs, inputs]: scale * b @ a (LoRA, Hu et al. 2021)."""

    a: np.ndarray  # f32[rank, inputs]
    b: np.ndarray  # f32[outputs, rank]
    scale: float
    """alpha / rank, or the format's equivalent."""
    magnitude: np.ndarray | None = None
    """f32[outputs] of DoRA (Liu et al. 2024): the norm of each row of the adapted matrix. None: no DoRA."""
    bias: np.ndarray | None = None
    """f32[outputs], added to b's product, so multiplied by scale."""
    base: Callable[[], np.ndarray] | None = None
    """Reads the file's copy of the base matrix, which must be the model's. None: the file has none."""
    paired: bool = False
    """Rows of b are in the order of llama.cpp's q and k: the two values of a rotated pair are adjacent."""

    def arrays(self) -> list[np.ndarray]:
        return [x for x in (self.a, self.b, self.magnitude, self.bias) if x is not None]


@dataclass(frozen=True, slots=True)
class Replaced:
    """New values of a tensor of the base model: a trained bias, or a layer of a classifier."""

    values: np.ndarray  # f32, of the tensor's shape

    def arrays(self) -> list[np.ndarray]:
        return [self.values]


@dataclass(frozen=True, slots=True)
class StackedLowRank:
    """The updates of a tensor of all experts [experts, outputs, inputs]: scale * b[e] @ a[e] of each."""

    a: np.ndarray  # f32[experts, rank, inputs]
    b: np.ndarray  # f32[experts, outputs, rank]
    scale: float

    def arrays(self) -> list[np.ndarray]:
        return [self.a, self.b]


Update = LowRank | Replaced | StackedLowRank


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """An adapter, read and checked."""

    modules: Mapping[str, Update]
    """Name of the base model's tensor in its checkpoint -> update: "model.layers.0.self_attn.q_proj.weight"."""
    digest: bytes
    """Digest of names, scales and values. Equal adapters have equal digests, independent of their files."""

    @property
    def rank(self) -> int:
        """The largest rank of its modules."""
        return max(int(m.a.shape[-2]) for m in self.modules.values() if not isinstance(m, Replaced))


@dataclass(frozen=True, slots=True)
class AdapterFormat:
    """A registered reader. `holds`: does this folder or file have the format? It checks names only, and raises nothing. `read`:
    name of the base tensor -> update. It raises CheckpointError or UnsupportedModelError."""

    holds: Callable[[Path], bool]
    read: Callable[[Path], Mapping[str, Update]]


def read_floats(path: Path) -> dict[str, Callable[[], np.ndarray]]:
    """Readers of every tensor of a safetensors file, in float32. The header is checked like a checkpoint's. A reader raises
    CheckpointError for a tensor without floating-point numbers."""
    shard = Shard(path)

    def read(name: str, dtype: str) -> np.ndarray:
        return widen(path, name, dtype, shard.read(name))

    return {name: partial(read, name, entry.dtype) for name, entry in shard.entries.items()}


def widen(path: Path, name: str, dtype: str, values: np.ndarray) -> np.ndarray:
    """Values in float32, as a copy. bfloat16 comes as unsigned integers of 16 bits, the upper half of a float32."""
    if dtype not in FLOATS:
        raise CheckpointError(f"{path}: tensor {name[:200]!r} is {dtype}; an adapter's are {', '.join(FLOATS)}")
    if dtype == "bfloat16":
        wide = values.astype("<u4")
        wide <<= 16
        return wide.view("<f4")
    return values.astype(np.float32)


def largest(values: np.ndarray) -> np.ndarray:
    """The least and the largest value, f32[2], NaN if one is."""
    return np.array([values.min(), values.max()]) if values.size else np.zeros(2, np.float32)


def check_modules(path: Path, modules: Mapping[str, Update]) -> AdapterWeights:
    """Checks the updates that a reader found. CheckpointError names a module with mismatched arrays, NaN or infinity, or an
    adapter without matrices."""
    if all(isinstance(m, Replaced) for m in modules.values()):
        raise CheckpointError(f"{path}: the adapter changes no matrix")
    for name, m in modules.items():
        if isinstance(m, LowRank):
            _check_shapes(path, name, m)
        if not all(np.isfinite(x).all() for x in (getattr(m, "scale", 0.0), *map(largest, m.arrays()))):
            raise CheckpointError(f"{path}: {name}: holds NaN or infinity")
    return AdapterWeights(dict(modules), _hash(modules))


def _check_shapes(path: Path, name: str, m: LowRank) -> None:
    if m.a.ndim != 2 or m.b.ndim != 2 or not m.a.shape[0] or m.b.shape[1] != m.a.shape[0]:
        raise CheckpointError(
            f"{path}: {name}: A of shape {list(m.a.shape)} and B of shape {list(m.b.shape)} are no [rank, inputs] and "
            "[outputs, rank]"
        )
    for what, vector in (("magnitude", m.magnitude), ("bias", m.bias)):
        if vector is not None and vector.shape != (len(m.b),):
            raise CheckpointError(f"{path}: {name}: {what} of shape {list(vector.shape)}, and B has {len(m.b)} rows")


def _hash(modules: Mapping[str, Update]) -> bytes:
    """The digest. Two threads share the modules: an adapter of a small model has tens of megabytes."""
    names = sorted(modules)
    with ThreadPoolExecutor(2) as pool:
        return sha256(b"".join(pool.map(lambda some: _hash_some(modules, some), (names[::2], names[1::2])))).digest()


def _hash_some(modules: Mapping[str, Update], names: Sequence[str]) -> bytes:
    hashed = sha256()  # most processors have instructions for it
    for name in names:
        m = modules[name]
        if isinstance(m, LowRank):
            more = (
                "".join(f" {field}" for field in ("magnitude", "bias") if getattr(m, field) is not None) + " paired" * m.paired
            )
            hashed.update(f"{name}\0{float(m.scale).hex()}\0{m.a.shape}{m.b.shape}{more}".encode())
        else:
            shapes, scale = [x.shape for x in m.arrays()], float(getattr(m, "scale", 1.0))
            hashed.update(f"{name}\0{type(m).__name__}\0{scale.hex()}{shapes}".encode())
        for array in m.arrays():
            hashed.update(_shorten(np.ascontiguousarray(array, np.float32)))
    return hashed.digest()


def _shorten(values: np.ndarray) -> memoryview:
    """Values of float32 in 16 bits each, if all of them are of bfloat16: then half as much is hashed."""
    words = values.view(np.uint32)
    return words.data if np.bitwise_or.reduce(words, axis=None) & 0xFFFF else (words >> 16).astype("<u2").data
