"""The stores of the package: what they keep, what they bound, and faults that cost time and no token."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis
from loopback import free_port
from store_faults import BLOCKS, KEYS, answers, check_contract, damage, damage_files, files, run_faults, settle, start

from thalweg.engine.control.store.base import Store
from thalweg.engine.control.store.disk import PART, DiskStore
from thalweg.engine.control.store.host import HostStore
from thalweg.engine.control.store.redis import RedisStore
from thalweg.errors import ConfigError


class RedisServer:
    """One on loopback, in a thread or a process."""

    def __init__(self, real: bool) -> None:
        port = free_port()
        self.url = f"redis://127.0.0.1:{port}/0"
        self.process: subprocess.Popen[bytes] | None = None
        if real:
            words = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
            self.process = subprocess.Popen(["redis-server", *words], stdout=subprocess.DEVNULL)
        else:
            self.server = fakeredis.TcpFakeServer(("127.0.0.1", port), server_type="redis")
            self.server.daemon_threads = True
            threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.client = redis.Redis.from_url(self.url, retry=None)
        end = time.monotonic() + 60
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                assert time.monotonic() < end, "the server does not answer"
                time.sleep(0.02)

    def stop(self) -> None:
        self.client.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        else:
            self.server.shutdown()
            self.server.server_close()


REAL = pytest.param(True, marks=pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server"), id="real")


@pytest.fixture(params=[pytest.param(False, id="fake"), REAL])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    made = RedisServer(request.param)
    yield made
    made.stop()


def test_host_and_disk_keep_the_contract(tmp_path: Path) -> None:
    check_contract(HostStore(10_000))
    check_contract(DiskStore.open({"folder": str(tmp_path / "a"), "max_bytes": 10_000}))


def test_redis_keeps_the_contract(server: RedisServer) -> None:
    store = RedisStore.open({"url": server.url, "ttl": 60})
    check_contract(store)
    assert all(0 < server.client.ttl(name) <= 60 for name in server.client.scan_iter())
    store.close()


def test_a_disk_store_outlives_its_process_within_its_bound(tmp_path: Path) -> None:
    options = {"shared_storage_path": str(tmp_path), "max_bytes": 450}
    DiskStore.open(options).save(KEYS[:4], BLOCKS[:4])
    again = DiskStore.open(options)
    for i, path in enumerate(sorted(files(tmp_path))):
        os.utime(path, ns=(i, i))
    assert again.load(KEYS[:1]) == [BLOCKS[0]]  # used last
    again.save(KEYS[4:5], BLOCKS[4:5])
    held = [again.lookup([key])[0] for key in KEYS]
    assert held == [True, False, False, True, True, False, False, False]
    assert sum(f.stat().st_size for f in files(tmp_path)) <= 450


def test_parts_of_an_engine_that_died_are_no_blocks_and_go(tmp_path: Path) -> None:
    store = DiskStore.open({"folder": str(tmp_path), "max_bytes": 10_000})
    store.save(KEYS[:1], BLOCKS[:1])
    part = files(tmp_path)[0].parent / f"x{PART}"
    part.write_bytes(b"half")
    os.utime(part, (1, 1))
    assert DiskStore.open({"folder": str(tmp_path), "max_bytes": 10_000}).lookup(KEYS[:1]) == [True]
    assert not part.exists()


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (DiskStore, {"folder": "here", "max_bytes": 1}, "folder: must be an absolute path"),
        (DiskStore, {"folder": "/x", "max_bytes": 1.5}, "max_bytes: must be a number of bytes"),
        (DiskStore, {"folder": "/proc/nothing/x", "max_bytes": 1}, "nothing can be written to"),
        (RedisStore, {"url": "localhost:6379"}, "url: must be such as redis://host:6379/0"),
        (RedisStore, {"url": "redis://:violet@h:1"}, "must have no password"),
        (RedisStore, {"url": "redis://h:1", "ttl": 0}, "ttl: must be a number of seconds"),
        (RedisStore, {"url": "redis://h:1", "password_file": "/nowhere"}, "password_file: '/nowhere' cannot be read"),
        (RedisStore, {"url": "redis://127.0.0.1:1", "timeout": 0.2}, "url: no server answers"),
    ],
)
def test_what_a_store_cannot_do_is_refused_by_option(kind: type[Store], options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as e:
        kind.open(options)
    assert "violet" not in str(e.value)


# ------------------------------------------------------------------ faults


@pytest.mark.slow
def test_damaged_files_cost_time_and_no_token(tmp_path: Path) -> None:
    want = answers(start(tmp_path))
    llm = start(tmp_path, "disk", folder=str(tmp_path / "blocks"), max_bytes=1 << 30)

    assert run_faults(llm, want, partial(damage_files, tmp_path / "blocks"), 8) == 480
    for _ in range(12):  # each time the first damaged block of a prompt is found
        before = llm.stats().store_hits
        llm.reset_prefix_cache()
        assert answers(llm) == want
        settle(llm)
    assert llm.stats().store_hits - before == 12 * 192, "damaged blocks were saved again"
    shutil.rmtree(tmp_path / "blocks")
    llm.reset_prefix_cache()
    assert answers(llm) == want
    llm.shutdown()


@pytest.mark.slow
def test_a_damaged_killed_or_silent_redis_costs_time_and_no_token(tmp_path: Path, server: RedisServer) -> None:
    want = answers(start(tmp_path))
    llm = start(tmp_path, "redis", url=server.url, timeout=0.5, load_timeout=1)

    def spoil(rng: random.Random) -> int:
        found = {name: server.client.get(name) for name in sorted(server.client.scan_iter())}
        some = rng.sample(list(found), 40)
        for name in some:
            server.client.set(name, damage(rng, found[name], rng.choice(list(found.values()))))
        return len(some)

    assert run_faults(llm, want, spoil, 4) == 160
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    server.stop()
    llm.reset_prefix_cache()
    assert answers(llm) == want  # nobody listens
    with socket.create_server(("127.0.0.1", port)):  # somebody listens, and never answers
        llm.reset_prefix_cache()
        assert answers(llm) == want
    llm.shutdown()
