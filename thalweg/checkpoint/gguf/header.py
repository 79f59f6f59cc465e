"""A bounds-checked reader of GGUF headers. Every length is compared with the rest of the file before use, so that a header
cannot allocate more memory than the file has bytes.

It is stricter than the format: duplicate names, numbers beyond the file, and tensors with gaps or overlaps are errors that name
the file and the place. Arrays of text stay in the mapped file until they are requested.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.checkpoint.gguf.types import GONE, STORED, TYPES, Type
from thalweg.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = "general.alignment"
MAX_NAME = 63
"""Bytes of a tensor's name, as in llama.cpp."""
MAX_KEY = 65_535
MAX_DIMS = 4
MAX_DIM = (1 << 63) - 1
LEAST_PAIR, LEAST_TENSOR = 13, 24
"""Least bytes of a metadata entry, and of a tensor's description."""

_SCALARS = {
    0: ("B", np.uint8), 1: ("b", np.int8), 2: ("H", np.uint16), 3: ("h", np.int16), 4: ("I", np.uint32), 5: ("i", np.int32),
    6: ("f", np.float32), 7: ("?", np.bool_), 10: ("Q", np.uint64), 11: ("q", np.int64), 12: ("d", np.float64),
}  # fmt: skip
_UINT32, _TEXT, _ARRAY = 4, 8, 9


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor's type, shape and bytes [begin, end) in the file. shape: the outermost dimension first, as in numpy."""

    name: str
    type: Type
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Texts:
    """An array of text in the file, with its lengths checked."""

    data: mmap.mmap
    begin: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        """Invalid UTF-8 becomes U+FFFD."""
        return (text for _, text in self.some(range(self.count)))

    def some(self, wanted: Sequence[int]) -> Iterator[tuple[int, str]]:
        """(index, text) for the given indices, which must be ascending."""
        at, place, size = self.begin, 0, struct.Struct("<Q").unpack_from
        for i in wanted:
            for _ in range(place, i):
                at += 8 + size(self.data, at)[0]
            (length,) = size(self.data, at)
            yield i, self.data[at + 8 : at + 8 + length].decode("utf-8", "replace")
            at, place = at + 8 + length, i + 1


class GGUFHeader:
    """One open file: its metadata and tensors, checked against its size. `data` maps it read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as f:
                size = os.fstat(f.fileno()).st_size
                self._start(f.read(24), size)
                self.data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as e:
            raise CheckpointError(f"{path}: cannot be read: {e.strerror or e}") from e
        reader = _Reader(path, self.data, size)
        self.metadata = reader.metadata(self._pairs)
        self.tensors = reader.tensors(self._tensors, _alignment(path, self.metadata))

    def _start(self, head: bytes, size: int) -> None:
        if not head.startswith(MAGIC):
            raise CheckpointError(f"{self.path}: is not a GGUF file: it begins with {head[:4]!r}")
        if len(head) < 24:
            raise CheckpointError(f"{self.path}: truncated: {size} bytes, too short for a header; download it again")
        version, self._tensors, self._pairs = struct.unpack_from("<IQQ", head, 4)
        if version not in VERSIONS:
            swapped = struct.unpack(">I", struct.pack("<I", version))[0] in VERSIONS
            why = "big-endian files are not read" if swapped else "this version reads 2 and 3; convert the model again"
            raise CheckpointError(f"{self.path}: GGUF version {version}: {why}")
        for what, count, least in (("tensors", self._tensors, LEAST_TENSOR), ("metadata entries", self._pairs, LEAST_PAIR)):
            if count > (size - 24) // least:
                raise CheckpointError(
                    f"{self.path}: claims {count} {what}, more than its {size} bytes can hold; truncated or corrupt"
                )

    def read(self, tensor: GGUFTensor) -> np.ndarray:
        """A view of the file: dense values in the tensor's shape, or blocks as uint8 [..., bytes of a row]."""
        kind = STORED[tensor.type.dense] if tensor.type.dense else np.uint8
        shape = tensor.shape if tensor.type.dense else (*tensor.shape[:-1], tensor.type.row(tensor.shape[-1]))
        return np.frombuffer(self.data, kind, math.prod(shape), tensor.begin).reshape(shape)

    def forget(self, tensor: GGUFTensor) -> None:
        """Release the tensor's pages from this process's memory. Reading it maps them again."""
        begin = tensor.begin // mmap.PAGESIZE * mmap.PAGESIZE
        if tensor.end > begin and hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED, begin, tensor.end - begin)


class _Reader:
    """Reads the file from behind the counts on. Every method advances `_at`, or raises CheckpointError."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self.path, self._data, self._size, self._at = path, data, size, 24

    def metadata(self, count: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for i in range(count):
            key = self._text(f"key {i}", MAX_KEY)
            if not key:
                raise self._fault(f"key {i} is empty")
            if key in out:
                raise self._fault(f"the key {key[:200]!r} appears twice")
            out[key] = self._value(key)
        return out

    def tensors(self, count: int, alignment: int) -> dict[str, GGUFTensor]:
        """The tensors by name. Data begins after the last description, and each tensor at a multiple of `alignment`."""
        found: list[tuple[str, Type, tuple[int, ...], int]] = []
        for i in range(count):
            found.append(self._read_tensor_info(f"tensor {i}"))
        start, at, out = _up(self._at, alignment), 0, dict[str, GGUFTensor]()
        for name, kind, shape, offset in found:
            where = f"tensor {name!r}"
            if name in out:
                raise self._fault(f"{where} appears twice")
            if offset != at:
                raise self._fault(f"{where} begins at byte {offset} of the data, and the one before it ends at {at}")
            size = math.prod(shape[:-1]) * kind.row(shape[-1])
            if start + at + size > self._size:
                raise CheckpointError(
                    f"{self.path}: truncated: {where} ends at byte {start + at + size}, the file has {self._size}; "
                    "download it again"
                )
            out[name] = GGUFTensor(name, kind, shape, start + at, start + at + size)
            at = _up(at + size, alignment)
        return out

    def _read_tensor_info(self, where: str) -> tuple[str, Type, tuple[int, ...], int]:
        name = self._text(f"the name of {where}", MAX_NAME)
        where = f"tensor {name!r}"
        (dims,) = self._take("<I", where)
        if not 1 <= dims <= MAX_DIMS:
            raise self._fault(f"{where} has {dims} dimensions; 1 to {MAX_DIMS} are possible")
        shape = tuple(reversed(self._take(f"<{dims}Q", where)))
        number, offset = self._take("<IQ", where)
        if any(n > MAX_DIM for n in shape) or math.prod(shape) > MAX_DIM:
            raise self._fault(f"{where} has the shape {list(shape)}, more values than there can be")
        if number not in TYPES:
            known = f" ({GONE[number]}, removed from llama.cpp: convert the model again)" if number in GONE else ""
            raise self._fault(f"{where} has type {number}{known}, which this version does not know")
        kind = TYPES[number]
        if shape[-1] % kind.values:
            raise self._fault(f"{where} has rows of {shape[-1]} values, and {kind.name} holds {kind.values} in a block")
        return name, kind, shape, offset

    def _value(self, key: str) -> Any:
        where = f"the value of {key[:200]!r}"
        (kind,) = self._take("<I", where)
        if kind == _TEXT:
            return self._text(where)
        if kind == _ARRAY:
            return self._array(where)
        return self._take(f"<{self._code(kind, where)}", where)[0]

    def _array(self, where: str) -> Any:
        kind, count = self._take("<IQ", where)
        if kind == _TEXT:
            begin = self._at
            if count > (self._size - begin) // 8:
                raise self._fault(f"{where} claims {count} texts")
            self._at = self._after_texts(begin, count, where)
            return Texts(self._data, begin, count)
        code = self._code(kind, where)
        width = struct.calcsize(f"<{code}")
        if count > (self._size - self._at) // width:
            raise self._fault(f"{where} claims {count} numbers")
        begin = self._at
        self._skip(count * width, where)
        stored = np.uint8 if code == "?" else _SCALARS[kind][1]
        values = np.frombuffer(self._data, np.dtype(stored).newbyteorder("<"), count, begin)
        return values != 0 if code == "?" else values

    def _after_texts(self, at: int, count: int, where: str) -> int:
        """The offset after `count` texts. A tight loop, as vocabularies have hundreds of thousands of texts."""
        data, last, length = self._data, self._size - 8, struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at > last:
                break
            at += 8 + length(data, at)[0]
        else:
            last = self._size
        if at > last:
            self._at = min(at, self._size)
            self._skip(self._size + 1, where)
        return at

    def _code(self, kind: int, where: str) -> str:
        if kind not in _SCALARS:
            raise self._fault(f"{where} has type {kind}, which is not a type of values")
        return _SCALARS[kind][0]

    def _text(self, where: str, most: int = 1 << 30) -> str:
        (size,) = self._take("<Q", where)
        if size > most:
            raise self._fault(f"{where} claims {size} bytes, {most} are possible")
        begin = self._at
        self._skip(size, where)
        return self._data[begin : begin + size].decode("utf-8", "replace")

    def _take(self, form: str, where: str) -> tuple[Any, ...]:
        begin = self._at
        self._skip(struct.calcsize(form), where)
        return struct.unpack_from(form, self._data, begin)

    def _skip(self, size: int, where: str) -> None:
        if size > self._size - self._at:
            raise self._fault(f"{where} goes beyond the end of the file ({self._size} bytes): truncated or corrupt")
        self._at += size

    def _fault(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: byte {self._at}: {what}")


def _alignment(path: Path, metadata: dict[str, Any]) -> int:
    value = metadata.get(ALIGNMENT, 32)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 32 or value & (value - 1):
        raise CheckpointError(f"{path}: {ALIGNMENT}: must be a power of two, not {value!r:.80}")
    return value


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
