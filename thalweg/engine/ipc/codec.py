"""Messages to frames and back. A frame is a 4-byte big-endian length and a MessagePack body.

Arrays travel as extension type 1: dtype (3 ASCII bytes, little-endian kinds only), number of dimensions (1 byte),
dimensions (4 bytes each), raw data. Anything that does not decode to one of the expected message types is refused.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

MAX_FRAME = 256 << 20
"""Bytes. A longer frame is refused before it is read. Fits the longest prompt logprobs of a step."""
HEADER = struct.Struct("!I")
_ARRAY = 1
_DTYPES = frozenset({"<i4", "<i8", "<f4", "<u4", "|b1", "|u1"})

M = TypeVar("M")


class FrameError(ValueError):
    """A frame is too long, cut short, or not one of the expected messages."""


class Codec(Generic[M]):
    """Encodes any message. Decodes only `expected` (a type or a union of tagged structs)."""

    def __init__(self, expected: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_to_wire)
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(expected, ext_hook=_from_ext, dec_hook=_only_arrays)

    def encode(self, message: Any) -> bytes:
        """Header and body. FrameError if the body is longer than MAX_FRAME."""
        body = self._encoder.encode(message)
        if len(body) > MAX_FRAME:
            raise FrameError(f"frame of {len(body)} bytes; the limit is {MAX_FRAME}")
        return HEADER.pack(len(body)) + body

    def decode(self, body: bytes) -> M:
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as e:
            raise FrameError(f"not a message: {e}") from None


def body_length(header: bytes) -> int:
    """The body length a header announces. FrameError beyond MAX_FRAME."""
    (n,) = HEADER.unpack(header)
    if n > MAX_FRAME:
        raise FrameError(f"frame announces {n} bytes; the limit is {MAX_FRAME}")
    return int(n)


def _to_wire(obj: Any) -> msgspec.msgpack.Ext:
    if not isinstance(obj, np.ndarray):
        raise TypeError(f"{type(obj).__name__} does not go on the wire")
    a = np.ascontiguousarray(obj)
    if a.dtype.str not in _DTYPES:
        raise TypeError(f"arrays of {a.dtype} do not go on the wire")
    head = a.dtype.str.encode() + struct.pack(f"!B{a.ndim}I", a.ndim, *a.shape)
    return msgspec.msgpack.Ext(_ARRAY, head + a.tobytes())


def _from_ext(code: int, data: memoryview) -> np.ndarray:
    raw = bytes(data)
    if code != _ARRAY or len(raw) < 4:
        raise ValueError(f"unknown extension {code}")
    dtype, ndim = raw[:3].decode("ascii", "replace"), raw[3]
    start = 4 + 4 * ndim
    if dtype not in _DTYPES or ndim > 4 or len(raw) < start:
        raise ValueError("malformed array header")
    shape = struct.unpack_from(f"!{ndim}I", raw, 4)
    if math.prod(shape) * np.dtype(dtype).itemsize != len(raw) - start:
        raise ValueError("array data does not fill its shape")
    return np.frombuffer(raw, dtype, offset=start).reshape(shape)


def _only_arrays(expected: type, obj: Any) -> Any:
    if expected is np.ndarray and isinstance(obj, np.ndarray):
        return obj
    raise ValueError(f"expected {expected.__name__}")
