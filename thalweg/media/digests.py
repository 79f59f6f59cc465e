"""Digests of processed media: no two inputs of a client share one."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

SIZE = 16
"""Bytes of a digest."""


class Digests:
    """Digests for one reader. The secret key is drawn here (BLAKE2b, RFC 7693), so clients cannot construct a collision."""

    def __init__(self, kind: str, processor: Any) -> None:
        """processor: settings that the arrays depend on, a msgspec structure."""
        self._secret = secrets.token_bytes(32)
        self._head = (kind.encode(), msgspec.msgpack.encode(processor))

    def of_bytes(self, data: bytes) -> bytes:
        """The digest of a file."""
        return hashlib.blake2b(data, key=self._secret, digest_size=SIZE).digest()

    def of_arrays(self, facts: Any, *arrays: np.ndarray) -> bytes:
        """The digest of arrays, their shapes and types, and facts about them. Each part stands behind its length."""
        found = hashlib.blake2b(key=self._secret, digest_size=SIZE)
        described = (part for a in arrays for part in (repr((a.shape, a.dtype.str)).encode(), np.ascontiguousarray(a).data))
        for part in (*self._head, repr(facts).encode(), *described):
            found.update(b"%d:" % memoryview(part).nbytes)
            found.update(part)
        return found.digest()

    def of_prefixes(self, parts: Sequence[np.ndarray]) -> tuple[bytes, ...]:
        """Digests of the first array, of the first two, and so on. All have one shape and type."""
        found, out = hashlib.blake2b(b"".join(self._head), key=self._secret, digest_size=SIZE), []
        for part in parts:
            found.update(np.ascontiguousarray(part).data)
            out.append(found.copy().digest())
        return tuple(out)
