"""A bounds-checked reader of safetensors files: every byte of a checkpoint is accounted for before any is used.

Format: https://github.com/huggingface/safetensors ("Format"): u64 little-endian header length, a JSON header of `name ->
{dtype, shape, data_offsets}`, then the tensors' bytes. It is stricter than the format: duplicate names, holes, overlaps,
trailing bytes and numbers other than plain integers are errors. A header's numbers cause no allocation, and pickled files are
never opened. No tensor framework: a tensor is a numpy view of its bytes.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import struct
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER = 100_000_000
"""Most bytes of a header, the limit of the format's library."""
MAX_INDEX = 100_000_000
MAX_DIM = 1 << 40
MAX_RANK = 16
PART = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.safetensors")
CHUNK = 1 << 24
"""Bytes compared at once."""

STORED = {
    "F64": ("float64", np.float64),
    "F32": ("float32", np.float32),
    "F16": ("float16", np.float16),
    "BF16": ("bfloat16", np.uint16),
    "F8_E4M3": ("float8_e4m3fn", np.uint8),
    "F8_E5M2": ("float8_e5m2", np.uint8),
    "F8_E8M0": ("float8_e8m0fnu", np.uint8),
    "I64": ("int64", np.int64),
    "I32": ("int32", np.int32),
    "I16": ("int16", np.int16),
    "I8": ("int8", np.int8),
    "U64": ("uint64", np.uint64),
    "U32": ("uint32", np.uint32),
    "U16": ("uint16", np.uint16),
    "U8": ("uint8", np.uint8),
    "BOOL": ("bool", np.bool_),
}
"""Format name -> (our dtype name, numpy type, an unsigned integer of the same width where numpy has no such type)."""

PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_MAGIC = (
    (b"PK\x03\x04", "a zip archive (a pickled PyTorch file?)"),
    (b"GGUF", "a GGUF file"),
    (b"\x80\x02", "a pickle"),
    (b"\x80\x04", "a pickle"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself (run `git lfs pull`)"),
)


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file: dtype name (numpy's, or bfloat16, float8_...), shape, and its bytes [begin, end) in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    stored: Any
    """numpy type of the bytes."""


class ReadMeter:
    """Bytes of tensors that were read. Any thread may add."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self.bytes += count


METER = ReadMeter()
"""Of this process."""


@dataclass(frozen=True, slots=True)
class FileSpan:
    """A contiguous range of a tensor's bytes in a file."""

    shard: Shard
    begin: int
    count: int

    def part(self, at: int, count: int) -> FileSpan:
        return FileSpan(self.shard, self.begin + at, count)

    def into(self, at: int, buffer: np.ndarray) -> None:
        """Fill the buffer, u8[n], with the bytes from `at` on, without mapping them. Thread-safe."""
        self.shard.into(self.begin + at, buffer)


class Shard:
    """One open file. Its header has been checked against its size. `data` maps it read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as f:
                self.entries = _parse(path, f, os.fstat(f.fileno()).st_size)
                self.data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
                self._file = os.dup(f.fileno())
                weakref.finalize(self, os.close, self._file)
        except OSError as e:
            raise CheckpointError(f"{path}: cannot be read: {e.strerror or e}") from e

    def read(self, name: str) -> np.ndarray:
        e = self.entries[name]
        count = math.prod(e.shape)
        return np.frombuffer(self.data, e.stored, count, e.begin).reshape(e.shape)

    def into(self, begin: int, buffer: np.ndarray) -> None:
        """Fill the buffer with the file's bytes from `begin` on."""
        METER.add(buffer.nbytes)
        left = buffer.data
        while left:
            try:
                got = os.preadv(self._file, [left], begin)
            except OSError as e:
                raise CheckpointError(f"{self.path}: cannot be read at byte {begin}: {e.strerror or e}") from e
            if got == 0:
                raise CheckpointError(f"{self.path}: truncated at byte {begin} while it was read; download it again")
            begin, left = begin + got, left[got:]

    def forget(self, name: str) -> None:
        e = self.entries[name]
        begin = e.begin // mmap.PAGESIZE * mmap.PAGESIZE
        if e.end > begin and hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED, begin, e.end - begin)


class Checkpoint:
    """The tensors of a model directory, by name."""

    def __init__(self, path: Path, homes: Mapping[str, Shard]) -> None:
        """homes: tensor name -> its shard."""
        self.path, self._home = path, dict(homes)

    @property
    def names(self) -> list[str]:
        return sorted(self._home)

    @property
    def bytes(self) -> int:
        """Size of all tensors."""
        return sum(e.end - e.begin for _, _, e in self.tensors())

    @property
    def values(self) -> int:
        """Number of values of all tensors, of any dtype."""
        return sum(math.prod(e.shape) for _, _, e in self.tensors())

    def __contains__(self, name: str) -> bool:
        return name in self._home

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def file(self, name: str) -> Path:
        """The file that holds the tensor, for messages."""
        return self._home[name].path

    def entry(self, name: str) -> tuple[str, tuple[int, ...]]:
        """(dtype name, shape). CheckpointError if there is no such tensor."""
        if name not in self._home:
            raise CheckpointError(f"{self.path}: has no tensor {name!r}")
        e = self._home[name].entries[name]
        return e.dtype, e.shape

    def read(self, name: str, rows: slice | None = None, cols: slice | None = None) -> np.ndarray:
        """A read-only view of the tensor, or of a slice of its rows (first dimension) and columns (second). Only the view's
        bytes are read from disk, on use. dtypes that numpy lacks are unsigned integers of the same width."""
        shape = self.entry(name)[1]
        view = self._home[name].read(name)
        if rows is not None:
            view = view[rows]
        if cols is not None:
            if len(shape) < 2:
                raise ValueError(f"{name}: columns asked of a tensor of shape {shape}")
            view = view[:, cols]
        METER.add(view.nbytes)
        return view

    def span(self, name: str, rows: slice | None = None) -> FileSpan | None:
        """The byte range of the tensor, or of a slice of its rows. None: the system can only map files."""
        if not hasattr(os, "preadv"):
            return None
        shard = self._home[name]
        e = shard.entries[name]
        whole = FileSpan(shard, e.begin, e.end - e.begin)
        if rows is None:
            return whole
        first, last, _ = rows.indices(e.shape[0])
        row = whole.count // max(1, e.shape[0])
        return whole.part(first * row, max(0, last - first) * row)

    def tensors(self) -> Iterator[tuple[str, Path, TensorEntry]]:
        """(name, file, entry) of each."""
        return ((name, shard.path, shard.entries[name]) for name, shard in self._home.items())

    def forget(self, name: str) -> None:
        """Release the tensor's pages from this process's memory. Reading its views maps them again."""
        self._home[name].forget(name)


def open_checkpoint(path: str | Path, stem: str = "model") -> Checkpoint:
    """The safetensors of a model directory, one file or several with an index. CheckpointError names file and reason. stem:
    prefix of the file names. With "model", a single file of any name is accepted."""
    path, single = Path(path), f"{stem}.safetensors"
    index = path / f"{single}.index.json"
    if index.is_file():
        return _open_sharded(path, index)
    if (path / single).is_file():
        return _join(path, [Shard(path / single)], index.name)
    found = sorted(p for p in path.glob("*.safetensors" if stem == "model" else f"{stem}*.safetensors") if p.is_file())
    if len(found) == 1 or _complete(found):
        return _join(path, [Shard(file) for file in found], index.name)
    if found:
        raise CheckpointError(
            f"{path}: {len(found)} safetensors files but no {index.name} that lists their tensors; add the index"
        )
    pickled = sorted(p.name for p in path.glob("*") if p.suffix in PICKLED)
    if pickled:
        raise CheckpointError(
            f"{path}: holds only pickled weights ({', '.join(pickled[:3])}), which can run code when read and are refused; "
            "convert them to safetensors"
        )
    raise CheckpointError(f"{path}: no weights: neither {single} nor {index.name} is there")


def _open_sharded(path: Path, index: Path) -> Checkpoint:
    if index.stat().st_size > MAX_INDEX:
        raise CheckpointError(f"{index}: larger than {MAX_INDEX} bytes; not an index")
    content = strict_json(index, index.read_bytes())
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map: must map tensor names to file names")
    wanted: dict[str, set[str]] = {}
    known = frozenset(weight_map)
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(".safetensors") or any(c in file for c in "/\\\0:"):
            raise CheckpointError(
                f"{index}: weight_map[{name!r}]: {file!r} is not the name of a safetensors file in the index's directory"
            )
        wanted.setdefault(file, set()).add(name)
    homes: dict[str, Shard] = {}
    for file, names in sorted(wanted.items()):
        if not (path / file).is_file():
            raise CheckpointError(f"{path / file}: listed in {index.name} but missing; download the model again")
        shard = Shard(path / file)
        here = set(shard.entries)
        if names - here:
            raise CheckpointError(f"{path / file}: lacks {_some(names - here)}, which {index.name} says it holds")
        if here - known:  # tensors indexed in another file are read there
            raise CheckpointError(f"{path / file}: holds {_some(here - known)}, which {index.name} does not list")
        homes |= dict.fromkeys(names, shard)
    return Checkpoint(path, homes)


def _complete(files: list[Path]) -> bool:
    """Are these all the parts of one model, by their names?"""
    first = PART.fullmatch(files[0].name) if files else None
    if first is None or int(first["count"]) != len(files):
        return False
    wanted = {f"{first['stem']}-{i:05}-of-{first['count']}.safetensors" for i in range(1, len(files) + 1)}
    return {file.name for file in files} == wanted


def _join(path: Path, shards: list[Shard], index: str) -> Checkpoint:
    """The tensors of all shards. Shards with the same name must have the same bytes for it."""
    homes: dict[str, Shard] = {}
    for shard in shards:
        for name in shard.entries:
            first = homes.setdefault(name, shard)
            if first is not shard and not _same(first, shard, name):
                raise CheckpointError(
                    f"{path}: {first.path.name} and {shard.path.name} hold different tensors {name[:200]!r}, and no {index} "
                    "says which counts; add the index"
                )
    return Checkpoint(path, homes)


def _same(one: Shard, other: Shard, name: str) -> bool:
    a, b = one.entries[name], other.entries[name]
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    size = a.end - a.begin
    parts = ((at, min(at + CHUNK, size)) for at in range(0, size, CHUNK))
    same = all(one.data[a.begin + i : a.begin + j] == other.data[b.begin + i : b.begin + j] for i, j in parts)
    for shard in (one, other):
        shard.forget(name)
    return same


def strict_json(path: Path, text: bytes, infinite: bool = False) -> Any:
    """Parses JSON strictly: duplicate keys, NaN and infinities are errors. CheckpointError names the file. infinite: accept
    Infinity, for the caller to judge."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            names = [k for k, _ in pairs]
            twice = next(k for i, k in enumerate(names) if k in names[:i])
            raise CheckpointError(f"{path}: the key {twice[:200]!r} appears twice")
        return out

    def constant(name: str) -> Any:
        if infinite and name == "Infinity":
            return float("inf")
        raise CheckpointError(f"{path}: {name} is not a number JSON allows")

    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_constant=constant)
    except CheckpointError:
        raise
    except UnicodeDecodeError as e:
        raise CheckpointError(f"{path}: not UTF-8 text (byte {e.start})") from e
    except RecursionError as e:
        raise CheckpointError(f"{path}: nested too deeply") from e
    except ValueError as e:
        raise CheckpointError(f"{path}: not valid JSON: {e}") from e


def _parse(path: Path, f: Any, size: int) -> dict[str, TensorEntry]:
    head = f.read(24)
    for magic, what in _MAGIC:
        if head.startswith(magic) and head[8:9] != b"{":  # otherwise these bytes are the length of a header
            raise CheckpointError(f"{path}: is {what}, not safetensors; it is not read")
    if len(head) < 8:
        raise CheckpointError(f"{path}: truncated: {size} bytes, too short for a header; download it again")
    (length,) = struct.unpack("<Q", head[:8])
    if length > MAX_HEADER:
        raise CheckpointError(
            f"{path}: claims a header of {length} bytes, the limit is {MAX_HEADER}; corrupt or not safetensors"
        )
    if 8 + length > size:
        raise CheckpointError(f"{path}: truncated: its header needs {8 + length} bytes, the file has {size}; download it again")
    f.seek(8)
    header = strict_json(path, f.read(length))
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__: must map names to text")
    entries = {name: _entry(path, name, value, 8 + length) for name, value in header.items()}
    _account(path, entries, 8 + length, size)
    return entries


def _entry(path: Path, name: str, value: Any, start: int) -> TensorEntry:
    where = f"{path}: tensor {name[:200]!r}"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where}: must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in STORED:
        raise CheckpointError(f"{where}: unknown dtype {dtype!r}")
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(_natural(n) for n in shape):
        raise CheckpointError(f"{where}: shape {str(shape)[:100]} is not a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_natural(n) for n in offsets):
        raise CheckpointError(f"{where}: data_offsets {str(offsets)[:100]} are not two byte positions")
    names, stored = STORED[dtype]
    begin, end = offsets
    need = math.prod(shape) * np.dtype(stored).itemsize
    if end - begin != need:
        raise CheckpointError(f"{where}: {dtype} {shape} needs {need} bytes, its data_offsets span {end - begin}")
    return TensorEntry(names, tuple(shape), start + begin, start + end, stored)


def _account(path: Path, entries: dict[str, TensorEntry], start: int, size: int) -> None:
    """CheckpointError unless the tensors cover the bytes after the header exactly once."""
    at = start
    for name, e in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if e.begin != at:
            what = "overlaps the tensor before it" if e.begin < at else f"leaves {e.begin - at} bytes before it unused"
            raise CheckpointError(f"{path}: tensor {name[:200]!r} {what}; the file is corrupt")
        at = e.end
    if at > size:
        raise CheckpointError(f"{path}: truncated: its tensors end at byte {at}, the file has {size}; download it again")
    if at < size:
        raise CheckpointError(f"{path}: {size - at} bytes after the last tensor belong to none; the file is corrupt")


def _natural(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= MAX_DIM


def _some(names: set[str], most: int = 3) -> str:
    listed = ", ".join(sorted(names)[:most])
    return listed + (f" and {len(names) - most} more" if len(names) > most else "")
