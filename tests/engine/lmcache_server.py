"""An LMCache server for the tests of its store: the program where it is installed, or the calls that the store makes."""

from __future__ import annotations

import mmap
import random
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import zmq
from loopback import free_port

CHUNK = 16
POOL = 32 << 20
PROGRAM = shutil.which("lmcache")
WORDS = [
    "--host", "127.0.0.1", "--http-host", "127.0.0.1", "--chunk-size", "16", "--l1-size-gb", "1", "--eviction-policy", "LRU",
    "--no-l1-use-lazy", "--supported-transfer-mode", "engine_driven",
]  # fmt: skip


class FakeServer:
    """Objects in a file in place of shared memory. An operation that fails is not answered, as by the program."""

    def __init__(self, memory: Path, pool: int = POOL) -> None:
        """pool: bytes."""
        self.changes: dict[str, Any] = {}
        """Other answers, by operation."""
        self.pool = pool
        self.objects: dict[tuple[Any, ...], tuple[int, int]] = {}
        """Key -> offset and bytes."""
        self.locks = 0
        """Of sessions on objects."""
        self.sessions = set[str]()
        self._sizes: dict[int, int] = {}
        self._pending: dict[tuple[Any, ...], tuple[int, int]] = {}
        self._found: dict[str, tuple[Any, ...] | None] = {}
        self._end = 0
        with (memory / "pool").open("wb") as file:
            file.truncate(pool)
        with (memory / "pool").open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), pool)
        self.socket = zmq.Context.instance().socket(zmq.ROUTER)
        self.socket.linger = 0
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self.socket.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self.socket.poll(20):
                peer, number, code, *arguments = self.socket.recv_multipart()
                operation = NAMES[msgspec.msgpack.decode(code)]
                decoded = [msgspec.msgpack.decode(each) for each in arguments]
                try:
                    answer = self.changes[operation] if operation in self.changes else getattr(self, operation)(*decoded)
                except (KeyError, AssertionError):
                    continue
                body = [] if answer is None else [msgspec.msgpack.encode(answer)]
                self.socket.send_multipart([peer, number, code, *body])

    def _name(self, key: dict[str, Any]) -> tuple[Any, ...]:
        assert len(key["token_ids"]) == key["end"] == CHUNK
        return key["model_name"], tuple(key["token_ids"]), key["cache_salt"]

    def get_chunk_size(self) -> int:
        return CHUNK

    def register_kv_cache_engine_driven_context(self, payload: dict[str, Any]) -> dict[str, Any]:
        assert (payload["use_mla"], payload["dtype_str"]) == (True, "uint8")
        self._sizes[payload["instance_id"]] = payload["num_layers"] * payload["num_physical_slots"] * payload["hidden_dim_size"]
        return {"shm_name": "pool", "pool_size": self.pool}

    def unregister_kv_cache_engine_driven_context(self, instance: int) -> None:
        del self._sizes[instance]

    def prepare_store(self, key: dict[str, Any], instance: int) -> dict[str, Any]:
        self.sessions.add(key["request_id"])
        name, size = self._name(key), self._sizes[instance]
        if name in self.objects or self._end + size > self.pool:
            return {"context": {"slots": [], "chunk_indices": []}}
        self._pending[name] = self._end, size
        self._end += size
        slot = {"offset": self._end - size, "length": size, "shape": [1, 1, size], "dtype": "uint8"}
        return {"context": {"slots": [slot], "chunk_indices": [0]}}

    def commit_store(self, key: dict[str, Any], instance: int, data: bytes) -> bool:
        assert data == b""
        self.objects[self._name(key)] = self._pending.pop(self._name(key))
        return True

    def lookup(self, key: dict[str, Any], ranks: int) -> None:
        assert (key["worker_id"], key["num_kv_readers"]) == (None, 1)
        self.sessions.add(key["request_id"])
        name = self._name(key)
        self._found[key["request_id"]] = name if name in self.objects else None
        self.locks += name in self.objects

    def wait_prefetch_status(self, session: str, seconds: float) -> int:
        return int(self._found[session] is not None)

    def free_lookup_locks(self, key: dict[str, Any], ranks: int) -> None:
        self.locks -= self._found.pop(key["request_id"], None) is not None

    def prepare_retrieve(self, key: dict[str, Any], instance: int) -> dict[str, Any]:
        name = self._found[key["request_id"]]
        assert (name, self._sizes[instance]) == (self._name(key), self.objects[name][1])
        offset, size = self.objects[name]
        return {"success": True, "data": b"", "context": {"slots": [{"offset": offset, "length": size}]}}

    def commit_retrieve(self, key: dict[str, Any], instance: int) -> bool:
        self.locks -= self._found.pop(key["request_id"]) is not None
        return True

    def end_session(self, session: str) -> None:
        self.sessions.discard(session)
        self._found.pop(session, None)

    def damage(self, rng: random.Random, count: int) -> None:
        """Change a bit of the newest copy of each of `count` blocks."""
        newest = {name[:2]: place for name, place in self.objects.items()}
        for offset, size in rng.sample(list(newest.values()), count):
            self.memory[offset + rng.randrange(size)] ^= 1 << rng.randrange(8)


NAMES = {
    8: "lookup", 10: "wait_prefetch_status", 12: "free_lookup_locks", 13: "end_session",
    14: "register_kv_cache_engine_driven_context", 15: "unregister_kv_cache_engine_driven_context", 16: "prepare_store",
    17: "commit_store", 18: "prepare_retrieve", 19: "commit_retrieve", 21: "get_chunk_size",
}  # fmt: skip
"""The program's numbers of its operations (lmcache/v1/multiprocess/transport/zmq_impl/wire.py)."""


class RealServer:
    """The program, with a pool of 1 GiB."""

    def __init__(self) -> None:
        self.port, self._name = free_port(), f"thalweg-test-{free_port()}"
        self.pool = Path(f"/dev/shm/lmcache_l1_pool_{self._name}")
        self.start()

    def start(self) -> None:
        """Return when the program listens."""
        assert PROGRAM is not None
        words = [PROGRAM, "server", *WORDS, "--port", str(self.port), "--http-port", str(free_port()), "--shm-name", self._name]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(words, stdout=quiet, stderr=quiet, env={"LMCACHE_TRACK_USAGE": "false"})
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                assert time.monotonic() < end, "the server does not answer"
                time.sleep(0.05)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.pool.unlink(missing_ok=True)
