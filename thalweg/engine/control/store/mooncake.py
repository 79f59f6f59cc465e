"""A store in Mooncake: `kv_connector` "mooncake" or "MooncakeStoreConnector". A master knows the blocks, and its clients hold
them in their memory.

The client is optional: `pip install 'thalweg[mooncake]'`, or another of its packages (docs/kv-stores.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from thalweg.engine.control.store.base import Store, find_unknown
from thalweg.engine.control.store.sockets import check_listens, split_address
from thalweg.errors import ConfigError

MASTER, METADATA, HOST, PROTOCOL = "master_server_address", "metadata_server", "local_hostname", "protocol"
DEVICE, SEGMENT, BUFFER, PREFIX = "device_name", "global_segment_size", "local_buffer_size", "prefix"
TEXTS = {METADATA: "P2PHANDSHAKE", HOST: "127.0.0.1", PROTOCOL: "tcp", DEVICE: "", PREFIX: "thalweg:"}
"""Options with text -> default."""
SIZES = {SEGMENT: (0, 0), BUFFER: (256 << 20, 1 << 20)}
"""Options in bytes -> default and least value. Names are those of Mooncake's configuration file."""
ABSENT = "Mooncake is not installed: pip install 'thalweg[mooncake]', or another of its packages (docs/kv-stores.md)"
FOUND = 1
"""Of `batch_is_exist`. 0: missing. Below: an error."""


class MooncakeStore(Store):
    """One object per block. The memory of all clients bounds them, and the master evicts the least recently used."""

    shared = True

    def __init__(self, client: Any, prefix: str, buffer: int) -> None:
        """client: a `mooncake.store.MooncakeDistributedStore` after its setup. buffer: bytes that its calls copy through."""
        self._client, self._prefix = client, prefix
        self._most = buffer // 2
        """Bytes of one call."""
        self._largest = 0
        """Bytes of the largest block so far."""

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> list[str]:
        known = (MASTER, *TEXTS, *SIZES)
        problems = find_unknown(options, known)
        if split_address(options.get(MASTER)) is None:
            problems.append(f"{MASTER}: must be such as 10.0.0.5:50051, not {options.get(MASTER)!r:.60}")
        problems += [
            f"{name}: must be text, not {options[name]!r:.40}" for name in TEXTS if type(options.get(name, "")) is not str
        ]
        for name, (_, least) in SIZES.items():
            value = options.get(name, least)
            if type(value) is not int or value < least:
                problems.append(f"{name}: must be a number of bytes, at least {least}, not {value!r:.40}")
        return problems

    @classmethod
    def open(cls, options: Mapping[str, Any]) -> Self:
        if problems := cls.check(options):
            raise ConfigError(*problems)
        address = split_address(options[MASTER])
        assert address is not None
        try:
            from mooncake.store import MooncakeDistributedStore
        except ImportError as e:  # also where a library of the system is missing
            raise ConfigError(f"kv_transfer_config: kv_connector: {ABSENT}: {e}") from None
        texts = {name: options.get(name, default) for name, default in TEXTS.items()}
        sizes = {name: options.get(name, default) for name, (default, _) in SIZES.items()}
        try:  # the client's own attempts take minutes
            check_listens(address)
        except OSError as e:
            raise ConfigError(f"kv_transfer_config: {MASTER}: no master answers at {options[MASTER]}: {e}") from None
        client = MooncakeDistributedStore()
        code = client.setup(
            texts[HOST], texts[METADATA], sizes[SEGMENT], sizes[BUFFER], texts[PROTOCOL], texts[DEVICE], options[MASTER]
        )
        if code:
            raise ConfigError(f"kv_transfer_config: mooncake: its client was not set up (error {code}); its log says why")
        return cls(client, texts[PREFIX], sizes[BUFFER])

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        found = self._client.batch_is_exist(self._names(keys))
        if any(code < 0 for code in found):
            raise OSError(f"batch_is_exist: error {min(found)}")
        return [code == FOUND for code in found]

    def load(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = []
        while len(found) < len(keys):
            count = self._most // self._largest if self._largest else 1
            part: list[bytes] = self._client.get_batch(self._names(keys[len(found) :][: max(1, count)]))
            self._largest = max(self._largest, *map(len, part))
            found += [block or None for block in part]
        return found

    def save(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> None:
        for part in self._divide(blocks):
            code = self._client.put_batch(self._names(keys[part]), list(blocks[part]))
            if code:
                raise OSError(f"put_batch: error {code}")

    def discard(self, keys: Sequence[bytes]) -> None:
        self._client.batch_remove(self._names(keys), True)

    def close(self) -> None:
        self._client.close()

    def _names(self, keys: Sequence[bytes]) -> list[str]:
        return [self._prefix + key.hex() for key in keys]

    def _divide(self, blocks: Sequence[bytes]) -> Iterator[slice]:
        """Ranges of at most `_most` bytes, with at least one block each."""
        begin = size = 0
        for i, block in enumerate(blocks):
            if i > begin and size + len(block) > self._most:
                yield slice(begin, i)
                begin, size = i, 0
            size += len(block)
            self._largest = max(self._largest, len(block))
        if begin < len(blocks):
            yield slice(begin, len(blocks))
