"""A store in LMCache's server: `kv_connector` "lmcache", "LMCacheMPConnector" or "LMCacheConnectorV1".

The server runs on this machine and keeps blocks in shared memory. It moves them to its own tiers (disk, remote) as
configured there. This module speaks the protocol of LMCache 0.5 for engines that copy their blocks themselves, over ZeroMQ.
LMCache is not imported, and needs no package here but `pip install 'thalweg[lmcache]'`.
"""

from __future__ import annotations

import itertools
import mmap
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from thalweg.engine.control.store.base import Store, check_seconds, find_unknown
from thalweg.errors import ConfigError

HOST, PORT, TIMEOUT, PREFIX = "lmcache.mp.host", "lmcache.mp.port", "lmcache.mp.mq_timeout", "prefix"
OPTIONS = (HOST, PORT, TIMEOUT, PREFIX)
"""The first three have the names of LMCache's connector."""
ABSENT = "pyzmq is not installed: pip install 'thalweg[lmcache]'"
FLAGS = "lmcache server --supported-transfer-mode engine_driven --shm-name NAME --no-l1-use-lazy"
OPERATIONS = {
    "lookup": 8, "wait_prefetch_status": 10, "free_lookup_locks": 12, "end_session": 13,
    "register_kv_cache_engine_driven_context": 14, "unregister_kv_cache_engine_driven_context": 15, "prepare_store": 16,
    "commit_store": 17, "prepare_retrieve": 18, "commit_retrieve": 19, "get_chunk_size": 21,
}  # fmt: skip
"""Numbers of the server's operations."""
KEY_BYTES = 16
AT_ONCE = 64
"""Blocks locked in the server's memory at once."""
AGAIN_SECONDS = 5.0
"""Between two attempts to reach a server that did not answer."""
MOST_DAMAGED = 1 << 16
SHARED_MEMORY = Path("/dev/shm")


class LMCacheStore(Store):
    """One object per block: a prompt of one chunk, whose first 16 tokens are the bytes of the key."""

    shared = True

    def __init__(self, url: str, seconds: float, prefix: str) -> None:
        """seconds: without an answer, after which the server counts as ended."""
        self._prefix = prefix
        self._sizes: list[int] = []
        self._reads, self._writes = _ServerCalls(url, seconds), _ServerCalls(url, seconds)
        self._chunk = 0
        """Tokens of an object."""
        self._locked: dict[bytes, tuple[int, str]] = {}
        """Keys of the latest look-up -> bytes of the block, and the session that keeps it in the server's memory."""
        self._numbers = itertools.count()
        self._salts: OrderedDict[bytes, int] = OrderedDict()
        """Keys of damaged blocks -> the number of the copy that replaces it: the server overwrites none."""

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> list[str]:
        problems = find_unknown(options, OPTIONS)
        for name in (HOST, PREFIX):
            if not isinstance(options.get(name, ""), str):
                problems.append(f"{name}: must be text, not {options[name]!r:.40}")
        if "://" in (host := str(options.get(HOST, ""))) and not host.startswith("tcp://"):
            problems.append(f"{HOST}: must be a host name or an address, not {host!r:.60}")
        port = options.get(PORT, 5555)
        if type(port) is not int or not 0 < port < 1 << 16:
            problems.append(f"{PORT}: must be a port, not {port!r:.40}")
        return problems + check_seconds(options, TIMEOUT)

    @classmethod
    def open(cls, options: Mapping[str, Any]) -> Self:
        if problems := cls.check(options):
            raise ConfigError(*problems)
        try:
            import zmq  # noqa: F401
        except ImportError:
            raise ConfigError(f"kv_transfer_config: kv_connector: {ABSENT}") from None
        url = f"tcp://{str(options.get(HOST, 'localhost')).removeprefix('tcp://')}:{options.get(PORT, 5555)}"
        store = cls(url, float(options.get(TIMEOUT, 2.0)), str(options.get(PREFIX, "thalweg-")))
        try:
            store._begin(url)
        except BaseException:
            store.close()
            raise
        return store

    def _begin(self, url: str) -> None:
        """Find the size of a chunk and the shared memory. ConfigError: the server cannot be used."""
        try:
            (self._chunk,) = self._reads.call("get_chunk_size", [()])
        except OSError as e:
            raise ConfigError(f"kv_transfer_config: {PORT}: no LMCache server at {url}: {e}; start it: {FLAGS}") from None
        if self._chunk < KEY_BYTES:
            raise ConfigError(
                f"kv_transfer_config: LMCache's server has chunks of {self._chunk} tokens: give it --chunk-size 256"
            )
        try:
            self._reads.register([KEY_BYTES], self._prefix, self._chunk)
        except OSError as e:
            raise ConfigError(f"kv_transfer_config: LMCache's server at {url} cannot be used: {e}; start it: {FLAGS}") from None

    def set_block_sizes(self, sizes: Sequence[int]) -> None:
        self._sizes = sorted(set(sizes))

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        self._unlock()
        self._reads.register(self._sizes, self._prefix, self._chunk)
        for size in self._sizes:
            self._lock([key for key in keys if key not in self._locked], size)
        return [key in self._locked for key in keys]

    def load(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if any(key not in self._locked for key in keys):
            self.lookup(keys)
        found: dict[bytes, bytes] = {}
        for part in _divide([key for key in dict.fromkeys(keys) if key in self._locked]):
            places = [self._locked.pop(key) for key in part]
            calls = [self._name(key, size, session, self._reads) for key, (size, session) in zip(part, places, strict=True)]
            answers = self._reads.call("prepare_retrieve", calls)
            for key, (size, _), answer in zip(part, places, answers, strict=True):
                slots = answer["context"].get("slots", ()) if answer["success"] else ()
                if slots:
                    found[key] = self._reads.read(slots[0], size)
            self._reads.call("commit_retrieve", calls)
            self._reads.call("end_session", [(session,) for _, session in places])
        return [found.get(key) for key in keys]

    def save(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> None:
        self._writes.register(sorted({len(block) for block in blocks}), self._prefix, self._chunk)
        for part in _divide(range(len(keys))):
            calls = [self._name(keys[i], len(blocks[i]), self._draw_session(), self._writes) for i in part]
            reserved = list[tuple[Any, ...]]()
            for i, call, answer in zip(part, calls, self._writes.call("prepare_store", calls), strict=True):
                if slots := answer["context"].get("slots"):  # none: it is there, or there is no room
                    self._writes.write(slots[0], blocks[i])
                    reserved.append((*call, b""))
            self._writes.call("commit_store", reserved)
            self._writes.call("end_session", [(name["request_id"],) for name, _ in calls])

    def discard(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._salts[key] = self._salts.pop(key, 0) + 1
        while len(self._salts) > MOST_DAMAGED:
            self._salts.popitem(last=False)

    def close(self) -> None:
        self._reads.close()
        self._writes.close()

    def _lock(self, keys: Sequence[bytes], size: int) -> None:
        """Look up blocks of this size. Those found stay in the server's memory."""
        names = [self._name(key, size, self._draw_session(), self._reads)[0] for key in keys]
        self._reads.call("lookup", [({**name, "worker_id": None}, 1) for name in names])
        sessions = [name["request_id"] for name in names]
        counts = self._reads.call("wait_prefetch_status", [(session, self._reads.seconds / 2) for session in sessions])
        missing = list[tuple[str]]()
        for key, session, count in zip(keys, sessions, counts, strict=True):
            if count:
                self._locked[key] = size, session
            else:
                missing.append((session,))
        self._reads.call("end_session", missing)

    def _unlock(self) -> None:
        """Release blocks of the latest look-up that were not loaded."""
        places, self._locked = self._locked, {}
        names = [self._name(key, size, session, self._reads)[0] for key, (size, session) in places.items()]
        self._reads.call("free_lookup_locks", [({**name, "worker_id": None}, 1) for name in names])
        self._reads.call("end_session", [(session,) for _, session in places.values()])

    def _name(self, key: bytes, size: int, session: str, connection: _ServerCalls) -> tuple[dict[str, Any], int]:
        """The server's key of a block, and the number of the context that has its size."""
        salt = self._salts.get(key, 0)
        name = {
            "model_name": f"{self._prefix}{size}", "world_size": 1, "worker_id": 0, "start": 0, "end": self._chunk,
            "token_ids": [*key, *bytes(self._chunk - KEY_BYTES)], "request_id": session, "cache_salt": str(salt or ""),
            "request_configs": None, "num_kv_readers": 1,
        }  # fmt: skip
        return name, connection.contexts[size]

    def _draw_session(self) -> str:
        return f"{self._prefix}{self._reads.identity}-{next(self._numbers)}"


class _ServerCalls:
    """Calls of one thread, and the server's memory as this thread sees it. OSError: no answer, or not a usable one."""

    def __init__(self, url: str, seconds: float) -> None:
        self.seconds = seconds
        self.identity = secrets.token_hex(7)
        self.contexts: dict[int, int] = {}
        """Bytes of a block -> the number of its context."""
        self._url, self._again = url, 0.0
        self._dealer: Any = None
        self._numbers = itertools.count(1)
        self._pool: mmap.mmap | None = None
        self._pool_name = ""

    def call(self, operation: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The answers to calls with these arguments. None: no result."""
        if not calls:
            return []
        import zmq

        if time.monotonic() < self._again:
            raise OSError(f"the LMCache server at {self._url} did not answer a moment ago")
        if self._dealer is None:
            self._dealer = zmq.Context.instance().socket(zmq.DEALER)
            self._dealer.setsockopt(zmq.LINGER, 200)
            self._dealer.set_hwm(0)  # a call does not wait for the server, an answer does
            self._dealer.connect(self._url)
        encode, dealer = msgspec.msgpack.encode, self._dealer
        numbers, code = [next(self._numbers) for _ in calls], encode(OPERATIONS[operation])
        for number, arguments in zip(numbers, calls, strict=True):
            dealer.send_multipart([encode(number), code, *map(encode, arguments)])
        answers, waiting = dict[int, Any](), set(numbers)
        while waiting:
            if not dealer.poll(1000 * self.seconds):
                self._leave()
                raise OSError(f"no answer to {operation} in {self.seconds:g} s")
            frames = dealer.recv_multipart()
            number = msgspec.msgpack.decode(frames[0])
            if number in waiting:  # else a late answer
                waiting.remove(number)
                answers[number] = msgspec.msgpack.decode(frames[2]) if len(frames) > 2 else None
        return [answers[number] for number in numbers]

    def register(self, sizes: Sequence[int], prefix: str, chunk: int) -> None:
        """Tell the server the sizes of blocks. A server that knows them changes nothing, and one that restarted learns them."""
        for size in sizes:
            self.contexts.setdefault(size, secrets.randbits(62))
        answers = self.call(
            "register_kv_cache_engine_driven_context",
            [
                ({
                    "instance_id": self.contexts[size], "model_name": f"{prefix}{size}", "world_size": 1, "block_size": chunk,
                    "num_layers": 1, "hidden_dim_size": size, "dtype_str": "uint8", "use_mla": True, "num_physical_slots": 1,
                },)
                for size in sizes
            ],
        )  # fmt: skip
        for answer in answers:
            self._map(answer["shm_name"], answer["pool_size"])

    def _map(self, name: str, size: int) -> None:
        if self._pool is not None and name == self._pool_name and size == len(self._pool):
            return
        if not name:
            raise OSError("it has no shared memory")
        path = SHARED_MEMORY / name.lstrip("/")
        try:
            with path.open("r+b") as file:
                self._pool, self._pool_name = mmap.mmap(file.fileno(), size), name
        except (OSError, ValueError) as e:
            where = "it must run on this machine, as this user"
            raise OSError(f"its shared memory {path} cannot be opened ({e}): {where}") from None

    def read(self, slot: Mapping[str, Any], size: int) -> bytes:
        """A copy of a block in the server's memory."""
        pool, at = self._find(slot, size)
        return pool[at : at + size]

    def write(self, slot: Mapping[str, Any], block: bytes) -> None:
        pool, at = self._find(slot, len(block))
        pool[at : at + len(block)] = block

    def _find(self, slot: Mapping[str, Any], size: int) -> tuple[mmap.mmap, int]:
        pool, at = self._pool, int(slot["offset"])
        if pool is None or int(slot["length"]) != size or not 0 <= at <= len(pool) - size:
            raise OSError(f"a place of {slot['length']} bytes at {at} for a block of {size}")
        return pool, at

    def close(self) -> None:
        """The server forgets the contexts. One that ended does not hold this up."""
        if self._dealer is not None and time.monotonic() >= self._again:
            for number in self.contexts.values():
                frames = (next(self._numbers), OPERATIONS["unregister_kv_cache_engine_driven_context"], number)
                self._dealer.send_multipart([msgspec.msgpack.encode(frame) for frame in frames])
            self._dealer.close()
        self._dealer = None

    def _leave(self) -> None:
        """Drop the connection, with calls that may still be under way, and do not ask for a while."""
        if self._dealer is not None:
            self._dealer.close(linger=0)
        self._dealer, self._again = None, time.monotonic() + AGAIN_SECONDS


def _divide(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for at in range(0, len(items), AT_ONCE):
        yield items[at : at + AT_ONCE]
