"""A prefill and a decode server that share an LMCache server, the program itself: it may end at any moment."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_handover import PATHS, Server, body_of, count_cached, ids_of, split

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from lmcache_server import PROGRAM, RealServer

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.skipif(PROGRAM is None, reason="LMCache is not installed")]
PATH = PATHS[1]


@pytest.fixture
def cache() -> Iterator[RealServer]:
    server = RealServer()
    yield server
    server.stop()


def test_two_servers_share_lmcache_and_outlive_it(tmp_path: Path, cache: RealServer) -> None:
    (tmp_path / "secret").write_text("a secret of sixteen bytes or more")
    options = {"lmcache.mp.host": "127.0.0.1", "lmcache.mp.port": cache.port, "load_timeout": 3}
    config = json.dumps({"kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": options})
    words = ("--kv-key-secret", str(tmp_path / "secret"), "--kv-transfer-config", config)
    servers = plain, prefill, decode = Server(), Server(*words), Server(*words)
    try:
        for i in range(4):
            want = ids_of(plain.post(PATH, body_of(PATH, i)).json())
            got = split(prefill, decode, PATH, body_of(PATH, i))
            assert ids_of(got) == want
            prompt = got["usage"]["prompt_tokens"]
            assert count_cached(got) >= prompt - 1 - (prompt - 1) % 32, "the next server has every whole block"
        cache.stop()
        for i in range(4, 6):
            want = ids_of(plain.post(PATH, body_of(PATH, i)).json())
            assert ids_of(split(prefill, decode, PATH, body_of(PATH, i))) == want, "without LMCache"
        cache.start()
        for i in range(6, 12):
            want = ids_of(plain.post(PATH, body_of(PATH, i)).json())
            got = split(prefill, decode, PATH, body_of(PATH, i))
            assert ids_of(got) == want
        assert count_cached(got) > 0, "the new one is used"
    finally:
        for server in servers:
            server.end()
