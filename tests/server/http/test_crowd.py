"""Too many connections: who gives way to whom, that probes are always answered, and that no address has all."""

from __future__ import annotations

import random
import select
import socket
import time

import pytest
from fake_engine import FakeEngine

from thalweg.server import serve
from thalweg.server.http.crowd import ConnectionRegistry, neighbourhood
from thalweg.server.http.middleware import tenant_of

TEXT = "/v1/completions"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
ENDLESS = b'{"prompt":"abc","max_tokens":200,"stream":true}'
MOST = 18
"""Connections of the servers here. One address may have 16."""


@pytest.fixture
def small(start, monkeypatch):
    monkeypatch.setattr(serve, "connection_limit", lambda: MOST)
    return lambda **settings: start(FakeEngine(delay=0.5), **settings)


@pytest.fixture
def connect():
    """Connections that last as long as the test."""
    opened: list[socket.socket] = []

    def connect(running, data: bytes = b"", host: str = "127.0.0.1") -> socket.socket:
        s = socket.create_connection(running.sock.getsockname(), 60, source_address=(host, 0))
        opened.append(s)
        s.sendall(data)
        return s

    yield connect
    for s in opened:
        s.close()


def ask(connect, running, path: str, host: str = "127.0.0.1") -> int:
    """The status that a new connection gets."""
    s = connect(running, b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path.encode(), host)
    said = b""
    while piece := s.recv(65536):
        said += piece
    return int(said.split()[1])


def is_open(s: socket.socket) -> bool:
    """Has the server not closed it?"""
    try:
        while select.select([s], [], [], 0)[0]:
            if not s.recv(65536):
                return False
    except ConnectionResetError:
        return False
    return True


def until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)


@pytest.mark.parametrize("said", [b"", b"P", HEAD % 100, HEAD % 100 + b"{"], ids=["nothing", "a byte", "a head", "half a body"])
@pytest.mark.slow
def test_connections_that_do_not_ask_keep_nobody_out(small, connect, said):
    running = small()
    silent = [connect(running, said) for _ in range(3 * MOST)]
    for _ in range(3):
        for path in ("/livez", "/health", "/readyz", "/v1/models"):
            assert ask(connect, running, path) == 200
    assert running.post(TEXT, {"prompt": "abc", "max_tokens": 2}).status_code == 200
    until(lambda: sum(map(is_open, silent)) < MOST)


def test_the_one_idle_longest_gives_way(small, connect):
    running = small()
    crowd = [connect(running) for _ in range(16)]
    until(lambda: len(running._server.server_state.connections) == 16)
    used = crowd[0]
    used.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert used.recv(65536).startswith(b"HTTP/1.1 200")  # so it has waited least now
    for i in range(1, 10):
        connect(running)
        until(lambda i=i: not is_open(crowd[i]))
        assert all(map(is_open, [used, *crowd[i + 1 :]]))


def test_requests_under_way_are_never_closed_and_probes_are_answered_beside_them(small, connect):
    running = small(max_queued_requests=100)
    busy = [connect(running, HEAD % len(ENDLESS) + ENDLESS) for _ in range(16)]
    until(lambda: running.app.lifecycle.inside == 16)
    for _ in range(5):
        assert ask(connect, running, "/livez") == 200
        assert ask(connect, running, "/health/") == 200
        assert ask(connect, running, "/v1/models") == 503
    silent = [connect(running) for _ in range(50)]  # nor do these keep probes out
    assert ask(connect, running, "/livez") == 200
    until(lambda: sum(map(is_open, silent)) <= 2)
    assert all(map(is_open, busy))
    assert ask(connect, running, "/v1/models", "127.0.0.2") == 200
    busy[0].close()
    until(lambda: running.app.lifecycle.inside == 15)
    assert ask(connect, running, "/v1/models") == 200


@pytest.mark.slow
def test_a_silent_connection_beyond_the_limit_is_told_why_it_is_closed(small, connect):
    running = small(max_queued_requests=100)
    for _ in range(16):
        connect(running, HEAD % len(ENDLESS) + ENDLESS)
    until(lambda: running.app.lifecycle.inside == 16)
    s = connect(running)
    said = s.recv(65536)
    assert said.startswith(b"HTTP/1.1 503")
    assert b"too many connections" in said


def test_one_address_leaves_places_to_others(small, connect):
    running = small(max_queued_requests=100)
    for _ in range(30):
        connect(running, HEAD % len(ENDLESS) + ENDLESS, "127.0.0.2")
    until(lambda: running.app.lifecycle.inside == 16)
    for _ in range(3):
        assert ask(connect, running, "/v1/models", "127.0.0.3") == 200
    kept = [connect(running, b"", "127.0.0.3") for _ in range(2)]
    for _ in range(3):
        connect(running, b"", "127.0.0.2")
    assert all(map(is_open, kept))


@pytest.mark.parametrize(
    ("host", "same", "other"),
    [
        ("10.0.0.1", "10.0.0.1", "10.0.0.2"),
        ("2001:db8::1", "2001:db8:0:0:ffff::9", "2001:db8:0:1::1"),
        ("fe80::1%eth0", "fe80::2", "fec0::1"),
        ("::ffff:10.0.0.1", "10.0.0.1", "::ffff:10.0.0.2"),
        ("", "", "::1"),
    ],
)
def test_a_network_of_64_bits_is_one_client(host, same, other):
    assert neighbourhood(host) == neighbourhood(same) != neighbourhood(other)
    tenants = [tenant_of({"client": (h, 1)}) for h in (host, same, other)]
    assert tenants == [neighbourhood(h) for h in (host, same, other)]


class One:
    """A connection that closes late: its owner hears of it, and it leaves afterwards."""

    def __init__(self, world: list[One]) -> None:
        self.world = world

    def give_way(self) -> None:
        self.world.append(self)


@pytest.mark.parametrize("seed", range(20))
def test_counts_hold_whoever_comes_and_goes(seed):
    rng = random.Random(seed)
    crowd, closing, inside = ConnectionRegistry(27), list[One](), dict[One, str]()
    extra: set[One] = set()
    busy: set[One] = set()
    for _ in range(2000):
        act = rng.random()
        if act < 0.5:
            one, host = One(closing), rng.choice("aaaaabc")
            inside[one] = host
            if not crowd.enter(one, host):
                extra.add(one)
        elif act < 0.7 and inside:
            one = rng.choice(list(inside))
            if one not in extra or crowd.admit(one):
                extra.discard(one)
                crowd.busy(one)
                busy.add(one)
        elif act < 0.85 and busy:
            one = rng.choice(list(busy))
            crowd.idle(one)
            busy.discard(one)
        elif inside:
            closing.append(rng.choice(list(inside)))
        assert not busy & set(closing[:-1] if act >= 0.85 else closing), "work was lost"
        for one in closing:
            crowd.leave(one)
            extra.discard(one)
            busy.discard(one)
            inside.pop(one, None)
        closing.clear()
        assert len(crowd) == len(inside)
        assert len(extra) <= crowd.probes
        ordinary = [host for one, host in inside.items() if one not in extra]
        assert len(ordinary) <= 27
        assert ordinary.count("a") <= 24, "an address has all"
    for one in inside:
        crowd.leave(one)
    assert not any((crowd._addresses, crowd._counts, crowd._idle, crowd._of, crowd._extra))
