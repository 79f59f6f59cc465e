"""The store in LMCache's server: with the program where it is installed, and with one that keeps objects in a file."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lmcache_server import PROGRAM, FakeServer, RealServer
from store_faults import BLOCKS, KEYS, answers, check_contract, run_faults, settle, start

from thalweg.engine.control.store import lmcache
from thalweg.engine.control.store.lmcache import LMCacheStore
from thalweg.errors import ConfigError

REAL = pytest.param("real", marks=[pytest.mark.skipif(PROGRAM is None, reason="LMCache is not installed"), pytest.mark.slow])


def options(port: int, **more: Any) -> dict[str, Any]:
    return {"lmcache.mp.host": "127.0.0.1", "lmcache.mp.port": port, **more}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(lmcache, "SHARED_MEMORY", tmp_path / "shm")
    server = FakeServer(tmp_path / "shm")
    yield server
    server.stop()


@pytest.fixture(params=["fake", REAL])
def server(request: pytest.FixtureRequest) -> Iterator[FakeServer | RealServer]:
    if request.param == "fake":
        yield request.getfixturevalue("fake")
        return
    made = RealServer()
    yield made
    made.stop()


def test_lmcache_keeps_the_contract(server: FakeServer | RealServer) -> None:
    store = LMCacheStore.open(options(server.port))
    check_contract(store)
    store.save(KEYS[:3], BLOCKS[:3])  # one is there, one has a replacement
    assert list(store.load(KEYS[:3])) == BLOCKS[:3]
    other = LMCacheStore.open(options(server.port))
    other.set_block_sizes([len(block) for block in BLOCKS])
    assert list(other.load([KEYS[3], KEYS[7]])) == [BLOCKS[3], None], "another engine reads them"
    many = [bytes([200, i // 256, i % 256, 0]) * 4 for i in range(300)]
    store.save(many, [BLOCKS[0]] * len(many))
    assert list(other.load(many)) == [BLOCKS[0]] * len(many)
    assert list(LMCacheStore.open(options(server.port, prefix="b-")).lookup(KEYS)) == [False] * 8
    store.close()
    other.close()


def test_locks_and_sessions_of_the_server_end(fake: FakeServer) -> None:
    store = LMCacheStore.open(options(fake.port))
    store.set_block_sizes([len(block) for block in BLOCKS])
    store.save(KEYS, BLOCKS)
    assert list(store.lookup(KEYS)) == [True] * 8
    assert fake.locks == 8, "blocks cannot leave between the look-up and the load"
    store.load(KEYS[:5])
    assert fake.locks == 3
    store.lookup([b"-" * 16])
    assert (fake.locks, fake.sessions) == (0, set())


def test_a_restarted_server_is_used_again(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LMCacheStore.open(options(fake.port, **{"lmcache.mp.mq_timeout": 0.2}))
    store.set_block_sizes([len(BLOCKS[0])])
    store.save(KEYS[:1], BLOCKS[:1])
    fake._sizes.clear()  # what a restart loses
    fake.objects.clear()
    assert list(store.lookup(KEYS[:1])) == [False]
    store.save(KEYS[:1], BLOCKS[:1])
    assert list(store.load(KEYS[:1])) == BLOCKS[:1]
    fake.stop()
    with pytest.raises(OSError, match=r"no answer to .* in 0.2 s"):
        store.lookup(KEYS[:1])
    with pytest.raises(OSError, match="did not answer a moment ago"):
        store.lookup(KEYS[:1])
    store.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"get_chunk_size": 8}, "chunks of 8 tokens: give it --chunk-size 256"),
        ({"register_kv_cache_engine_driven_context": {"shm_name": "", "pool_size": 0}}, "no shared memory; start it: lmcache"),
        ({"register_kv_cache_engine_driven_context": {"shm_name": "x", "pool_size": 9}}, "must run on this machine, as this"),
    ],
)
def test_an_unusable_server_is_refused_at_the_start(fake: FakeServer, changes: dict[str, Any], words: str) -> None:
    fake.changes = changes
    with pytest.raises(ConfigError, match=words):
        LMCacheStore.open(options(fake.port))


def test_a_missing_server_or_package_is_refused_at_the_start(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.stop()
    with pytest.raises(ConfigError, match=r"no LMCache server at tcp://127.0.0.1:\d+: .*; start it: lmcache server"):
        LMCacheStore.open(options(fake.port, **{"lmcache.mp.mq_timeout": 0.1}))
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(ConfigError, match=r"pip install 'thalweg\[lmcache\]'"):
        LMCacheStore.open(options(fake.port))


def test_a_place_outside_of_the_shared_memory_is_not_used(fake: FakeServer) -> None:
    store = LMCacheStore.open(options(fake.port))
    store.set_block_sizes([len(BLOCKS[0])])
    store.save(KEYS[:1], BLOCKS[:1])
    slot = {"offset": (32 << 20) - 50, "length": len(BLOCKS[0])}
    fake.changes = {"prepare_retrieve": {"success": True, "data": b"", "context": {"slots": [slot]}}}
    with pytest.raises(OSError, match="a place of 100 bytes at"):
        store.load(KEYS[:1])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"lmcache.mp.port": 0}, "lmcache.mp.port: must be a port, not 0"),
        ({"lmcache.mp.host": "ipc://x"}, "lmcache.mp.host: must be a host name or an address"),
        ({"lmcache.mp.host": 5}, "lmcache.mp.host: must be text, not 5"),
        ({"lmcache.mp.mq_timeout": "9"}, "lmcache.mp.mq_timeout: must be seconds above 0 and at most 60"),
        ({"lmcache.mp.lazy_offload": True}, "'lmcache.mp.lazy_offload' is not supported; this store has lmcache.mp.host"),
    ],
)
def test_options_of_lmcache_are_refused_by_name(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LMCacheStore.open(wrong)


@pytest.mark.slow
def test_a_damaged_or_dead_lmcache_costs_time_and_no_token(tmp_path: Path, fake: FakeServer) -> None:
    want = answers(start(tmp_path))
    llm = start(tmp_path, "LMCacheMPConnector", **options(fake.port, load_timeout=2, **{"lmcache.mp.mq_timeout": 0.5}))

    def spoil(rng: random.Random) -> int:
        fake.damage(rng, 40)
        return 40

    assert run_faults(llm, want, spoil, 4) == 160
    fake.stop()
    llm.reset_prefix_cache()
    assert answers(llm) == want  # nobody answers
    settle(llm)
    llm.llm_engine.core.check()
    llm.shutdown()
