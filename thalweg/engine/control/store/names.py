"""The name of a block in a store, and its stored form: the bytes and a checksum over the bytes and the name."""

from __future__ import annotations

import hashlib
import zlib

SUM_BYTES = 4


class StoreKeys:
    """Names of the blocks of one model in one layout. Node keys depend on the key secret, so names do."""

    def __init__(self, signature: bytes) -> None:
        """signature: at most 64 bytes, as `mover.Mover.signature`."""
        self._hash = hashlib.blake2b(key=signature, digest_size=16)

    def name(self, key: bytes, group: int) -> bytes:
        """The name of the block that KV group `group` files under the prefix cache's node `key`."""
        h = self._hash.copy()
        h.update(b"%d:%b" % (group, key))
        return h.digest()


def seal(name: bytes, block: bytes) -> bytes:
    """A block as stores keep it."""
    return block + zlib.crc32(block, zlib.crc32(name)).to_bytes(SUM_BYTES, "little")


def unseal(name: bytes, kept: bytes | bytearray | memoryview | None, size: int) -> memoryview | None:
    """The block of `size` bytes. None: missing, or not the bytes saved under this name."""
    if kept is None or len(kept) != size + SUM_BYTES:
        return None
    view = memoryview(kept)
    block, found = view[:size], int.from_bytes(view[size:], "little")
    return block if zlib.crc32(block, zlib.crc32(name)) == found else None
