"""The store in Mooncake: with its package and a master where it is installed, and with a client of a dict."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from loopback import free_port
from store_faults import BLOCKS, KEYS, answers, check_contract, damage, run_faults, settle, start

from thalweg.engine.control.store.mooncake import MooncakeStore
from thalweg.errors import ConfigError

try:  # a library of the system may be missing too
    import mooncake.store as real
except ImportError:
    real = None
BUFFER = 4 << 20


class FakeClient:
    """The calls of `MooncakeDistributedStore` that the store makes, with its codes."""

    blocks: dict[str, bytes] = {}
    buffer = 0
    most = 0
    """Bytes of the largest call."""
    closed = False

    def setup(self, host: str, metadata: str, segment: int, buffer: int, protocol: str, device: str, master: str) -> int:
        self.buffer = buffer
        return 0

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        return [-900 if self.closed else int(key in self.blocks) for key in keys]

    def get_batch(self, keys: Sequence[str]) -> list[bytes]:
        found = [self.blocks.get(key, b"") for key in keys]
        FakeClient.most = max(FakeClient.most, sum(map(len, found)))
        return [b""] * len(keys) if self.closed or sum(map(len, found)) > self.buffer else found

    def put_batch(self, keys: Sequence[str], blocks: Sequence[bytes]) -> int:
        if self.closed or sum(map(len, blocks)) > self.buffer:
            return -600
        for key, block in zip(keys, blocks, strict=True):
            self.blocks.setdefault(key, block)
        return 0

    def upsert_batch(self, keys: Sequence[str], blocks: Sequence[bytes]) -> int:
        self.blocks |= dict(zip(keys, blocks, strict=True))
        return 0

    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        return [0 if self.blocks.pop(key, None) is not None else -704 for key in keys]

    def close(self) -> int:
        return 0


class Master:
    """A master on loopback, or a socket that answers."""

    def __init__(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.real = kind == "real"
        self.process: subprocess.Popen[bytes] | None = None
        port = free_port()
        self.listener = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{port}"
        if not self.real:
            FakeClient.blocks, FakeClient.most, FakeClient.closed = {}, 0, False
            fake = types.ModuleType("mooncake.store")
            fake.MooncakeDistributedStore = FakeClient  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, "mooncake", types.ModuleType("mooncake"))
            monkeypatch.setitem(sys.modules, "mooncake.store", fake)
            return
        self.listener.close()
        metrics = free_port()
        program = Path(real.__file__).parent / "mooncake_master"
        words = [f"--rpc_port={port}", f"--metrics_port={metrics}", "--rpc_address=127.0.0.1", "--default_kv_lease_ttl=200"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen([program, *words], stdout=quiet, stderr=quiet)
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except OSError:
                assert time.monotonic() < end, "the master does not answer"
                time.sleep(0.02)

    def stop(self) -> None:
        FakeClient.closed = True
        self.listener.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def options(self, **more: Any) -> dict[str, Any]:
        return {"master_server_address": self.address, "global_segment_size": 64 << 20, "local_buffer_size": BUFFER, **more}


REAL = pytest.param("real", marks=pytest.mark.skipif(real is None, reason="Mooncake is not installed"))


@pytest.fixture(params=["fake", REAL])
def master(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Master]:
    made = Master(request.param, monkeypatch)
    yield made
    made.stop()


def test_mooncake_keeps_the_contract_in_calls_that_fit_its_buffer(master: Master) -> None:
    store = MooncakeStore.open(master.options())
    check_contract(store)
    large = [bytes([i]) * (1 << 20) for i in range(6)]
    names = [b"large" + key[:11] for key in KEYS[:6]]
    store.save(names, large)
    assert list(store.load(names)) == large
    assert FakeClient.most <= BUFFER
    master.stop()
    with pytest.raises(OSError, match="error -"):
        store.lookup(KEYS)
    assert list(store.load(KEYS[:1])) == [None]
    with pytest.raises(OSError, match="put_batch: error -"):
        store.save(KEYS[:1], BLOCKS[:1])
    store.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "master_server_address: must be such as 10.0.0.5:50051, not None"),
        ({"master_server_address": "h:0"}, "master_server_address: must be such as"),
        ({"master_server_address": "h:1", "local_buffer_size": 7}, "local_buffer_size: must be a number of bytes, at least"),
        ({"master_server_address": "h:1", "protocol": 1}, "protocol: must be text"),
        ({"master_server_address": "h:1", "ttl": 1}, "'ttl' is not supported; this store has master_server_address"),
    ],
)
def test_options_of_mooncake_are_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MooncakeStore.open(options)


def test_a_missing_master_or_package_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    master = Master("fake", monkeypatch)
    master.stop()
    with pytest.raises(ConfigError, match="no master answers at"):
        MooncakeStore.open(master.options())
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(ConfigError, match=r"pip install 'thalweg\[mooncake\]'"):
        MooncakeStore.open(master.options())


@pytest.mark.slow
def test_a_damaged_or_dead_mooncake_costs_time_and_no_token(tmp_path: Path, master: Master) -> None:
    want = answers(start(tmp_path))
    llm = start(tmp_path, "MooncakeStoreConnector", **master.options(load_timeout=2))
    client: Any = llm.llm_engine.core._transfers._store._client
    saved = dict[str, bytes]()
    put = client.put_batch

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

        def put_batch(self, keys: list[str], blocks: list[bytes]) -> int:
            saved.update(zip(keys, blocks, strict=True))
            return int(put(keys, blocks))

    llm.llm_engine.core._transfers._store._client = Watched()

    def spoil(rng: random.Random) -> int:
        some = rng.sample(sorted(saved), 40)
        damaged = [damage(rng, saved[name], rng.choice(list(saved.values()))) or b"-" for name in some]
        assert client.upsert_batch(some, damaged) == 0
        return len(some)

    assert run_faults(llm, want, spoil, 4) == 160
    master.stop()
    llm.reset_prefix_cache()
    assert answers(llm) == want  # nobody answers
    settle(llm)
    llm.llm_engine.core.check()
    llm.shutdown()
