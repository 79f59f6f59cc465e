"""A connection on the wire: framing, deadlines, slow and leaving clients, requests sent ahead."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import httpx
import pytest
from fake_engine import FakeEngine

TEXT = "/v1/completions"


@contextlib.contextmanager
def raw(running, size: int | None = None) -> Iterator[socket.socket]:
    """A bare connection; `size`: of its receive buffer."""
    with socket.socket() as s:
        if size is not None:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        s.connect(running.sock.getsockname())
        s.settimeout(60)
        yield s


def post(body: object, *fields: str, path: str = TEXT) -> bytes:
    data = json.dumps(body).encode()
    head = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        *fields,
    ]
    return ("\r\n".join(head) + "\r\n\r\n").encode() + data


def all_of(s: socket.socket) -> bytes:
    """Everything until the server closes."""
    out = b""
    with contextlib.suppress(ConnectionError):
        while piece := s.recv(65536):
            out += piece
    return out


def answer_of(s: socket.socket) -> bytes:
    """One whole answer: its head and the body, which may come in a later packet. Less, if the server closes before."""
    said, wanted = b"", 1
    while len(said) < wanted:
        piece = s.recv(65536)
        if not piece:
            break
        said += piece
        head, end, _ = said.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        wanted = len(head) + len(end) + int(length[1]) if end and length else len(said) + 1
    return said


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)


def finals(answers: bytes) -> list[int]:
    """Statuses of the answers, interim ones left out."""
    return [int(p[:3]) for p in answers.split(b"HTTP/1.1 ")[1:] if not p.startswith(b"1")]


HIDDEN = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 0\r\nTransfer-Encoding: chunked",
        b"Content-Length: 0\r\nContent-Length: 44",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding : chunked",
        b"Content-Length: 0\n",
        b"X: y\r\n Content-Length: 0",
        b"Content-Encoding: gzip\r\nContent-Length: 0",
    ],
)
def test_nothing_is_served_behind_an_ambiguous_request(server, fields):
    with raw(server) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + fields + b"\r\n\r\n0\r\n\r\n" + HIDDEN)
        answer = all_of(s)
    assert len(finals(answer)) == 1
    assert finals(answer)[0] in (400, 415, 501)
    assert b"connection: close" in answer
    assert b"version" not in answer.split(b"\r\n\r\n")[1]


def test_header_bombs_are_refused_unread(server):
    for bomb in (b"X: " + b"a" * 1_000_000, b"a" * 1_000_000, b"X: y\r\n" * 20_000):
        with raw(server) as s, contextlib.suppress(ConnectionError):
            s.sendall(b"GET /" + b"b" * 10 + b" HTTP/1.1\r\nHost: localhost\r\n" + bomb)
            assert finals(all_of(s)) == [431]
    with raw(server) as s:
        s.sendall(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert finals(all_of(s)) == [431]


def test_a_body_over_the_limit_is_not_read_to_its_end(start, monkeypatch):
    monkeypatch.setattr("thalweg.server.http.connection.LINGER", 30.0)  # a busy machine sends slowly
    running = start(max_body=100_000)
    with raw(running) as s:
        s.sendall(
            f"POST {TEXT} HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json\r\nContent-Length: {2**30}\r\n\r\n".encode()
        )
        sent = 0
        with contextlib.suppress(ConnectionError, TimeoutError):
            s.settimeout(1.5)
            while sent < 2**28:
                sent += s.send(b" " * 65536)
        assert sent < 2**27, "the server went on reading"
    with raw(running) as s:
        s.sendall(f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode())
        s.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                s.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")
                time.sleep(0.001)
        answer = all_of(s)
    assert finals(answer) == [413]
    assert b"connection: close" in answer


def test_a_client_that_sends_everything_first_reads_its_refusal(start, monkeypatch):
    """As urllib and http.client do: they look for an answer when the whole body is out."""
    monkeypatch.setattr("thalweg.server.http.connection.LINGER", 30.0)  # a busy machine sends slowly
    running = start(max_body=100_000)
    body = b'{"prompt": "' + b"x" * 20_000_000 + b'"}'
    request = urllib.request.Request(running.url + TEXT, body, {"content-type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as e:
        urllib.request.urlopen(request, timeout=60)
    assert e.value.code == 413
    assert "limit is 100000" in json.loads(e.value.read())["error"]["message"]


def test_an_expected_continue_is_given_only_to_what_will_be_read(start):
    running = start(max_body=1000)
    with raw(running) as s:
        head, _, body = post({"prompt": "a", "max_tokens": 1}, "Expect: 100-continue").partition(b"\r\n\r\n")
        s.sendall(head + b"\r\n\r\n")
        assert s.recv(100).startswith(b"HTTP/1.1 100 ")
        s.sendall(body)
        assert b"200 OK" in answer_of(s)
    with raw(running) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        s.sendall(b"Content-Length: 5000\r\nExpect: 100-continue\r\n\r\n")
        assert all_of(s).startswith(b"HTTP/1.1 413 ")


@pytest.mark.slow
def test_deadlines_are_absolute(start):
    running = start(header_timeout=0.4, body_timeout=0.6)
    for first, seconds in (
        (b"GET / HTTP/1.1\r\n", 0.4),
        (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n", 0.6),
    ):
        with raw(running) as s:
            begin = time.monotonic()
            s.sendall(first)
            with contextlib.suppress(ConnectionError):
                while time.monotonic() - begin < 20:  # a byte now and then buys no time
                    s.sendall(b"X")
                    time.sleep(0.05)
            held = time.monotonic() - begin
        assert seconds - 0.05 <= held < 20
    with raw(running) as s:
        begin = time.monotonic()
        assert all_of(s) == b""
        assert time.monotonic() - begin < 20


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_ends_its_side_is_still_answered(start, stream):
    running = start(FakeEngine(delay=0.02))
    with raw(running) as s:
        s.sendall(post({"prompt": "abc", "max_tokens": 10, "stream": stream}))
        s.shutdown(socket.SHUT_WR)
        answer = all_of(s)
    assert finals(answer) == [200]
    assert b"[DONE]" in answer if stream else b'"completion_tokens":10' in answer
    assert not running.engine.aborted


@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.sampled(2)
def test_a_client_that_is_gone_frees_its_request_at_once(start, stream, how):
    running = start(FakeEngine(delay=0.3))  # all of its tokens would take a minute
    with raw(running) as s:
        s.sendall(post({"prompt": "abc", "max_tokens": 200, "stream": stream}))
        until(lambda: running.engine.running)
        time.sleep(0.1)
        if how == "reset":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: not running.engine.running)
    assert len(running.engine.aborted) == 1


def test_a_client_that_leaves_the_queue_gives_its_place_back(start):
    engine = FakeEngine(delay=0.3)
    running = start(engine)
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(raw(running)) for _ in range(14)]
        for s in others:
            s.sendall(post({"prompt": "a", "max_tokens": 600}))
        admission = running.app.serving.admission
        until(lambda: admission.waiting == 4)  # window: 8 sequences and 2 more
        others[-1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        others[-1].close()
        others[-2].close()
        until(lambda: admission.waiting == 2)
        assert (admission.places, admission.tokens) == (2, 2)
        assert len(engine.running) == 10
    until(lambda: not engine.running and not admission.places and not admission.running)
    assert len(engine.prompts) < 14


def test_requests_sent_ahead_are_answered_in_order(server):
    with raw(server) as s:
        s.sendall(
            b"".join(post({"prompt": "a" * (i + 1), "max_tokens": 1}) for i in range(20))
            + HIDDEN[:-2]
            + b"Connection: close\r\n\r\n"
        )
        answers = all_of(s)
    bodies = [json.loads(a.split(b"\r\n\r\n", 1)[1]) for a in answers.split(b"HTTP/1.1 ")[1:]]
    assert [b["usage"]["prompt_tokens"] for b in bodies[:-1]] == list(range(1, 21))
    assert "version" in bodies[-1]


def test_requests_sent_ahead_by_a_client_that_is_gone_never_start(start):
    running = start(FakeEngine(delay=0.5))
    with raw(running) as s:
        s.sendall(post({"prompt": "a", "max_tokens": 100}) * 100)
        until(lambda: running.engine.running)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: not running.engine.running)
    time.sleep(0.2)
    assert len(running.engine.prompts) == 1


def test_a_client_that_sends_far_ahead_is_cut(start):
    running = start(FakeEngine(delay=0.5))
    with raw(running) as s:
        with contextlib.suppress(ConnectionError, TimeoutError):
            s.sendall(post({"prompt": "a", "max_tokens": 100}) + b"\r\n" * 4_000_000)
        assert all_of(s) == b""
    until(lambda: not running.engine.running)


class Endless(FakeEngine):
    """Makes text faster than anyone reads."""

    async def _tokens(self, ids, p, request_id, first):
        output = await anext(super()._tokens(ids, p, request_id, first))
        output.outputs[0].text = "x" * 10_000
        output.outputs[0].finish_reason = None
        output.finished = False
        while True:
            yield output


@pytest.mark.slow
def test_a_client_that_does_not_read_is_cut_and_holds_little(start):
    running = start(Endless(), slow_client_timeout=0.5)
    with raw(running, 4096) as s:
        s.sendall(post({"prompt": "a", "max_tokens": 10, "stream": True}))
        until(lambda: running.engine.running)
        begin = time.monotonic()
        until(lambda: not running.engine.running)
        assert time.monotonic() - begin > 0.4
    assert httpx.get(running.url + "/livez").status_code == 200


@pytest.mark.slow
def test_a_slow_client_that_reads_is_not_cut(start):
    running = start(Endless(), slow_client_timeout=1.0)
    with raw(running, 65536) as s:
        s.sendall(post({"prompt": "a", "max_tokens": 10, "stream": True}))
        end = time.monotonic() + 2
        while time.monotonic() < end:
            assert s.recv(65536)
            time.sleep(0.02)
        assert running.engine.running


def test_http10_gets_a_whole_answer_and_a_close(server):
    with raw(server) as s:
        s.sendall(post({"prompt": "abc", "max_tokens": 4, "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = all_of(s)
    assert b"transfer-encoding" not in answer
    assert answer.endswith(b"data: [DONE]\n\n")


def test_head_has_no_body_and_upgrades_are_not_taken(server):
    with raw(server) as s:
        s.sendall(
            b"HEAD /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
            + HIDDEN[:-2]
            + b"Upgrade: h2c\r\nConnection: upgrade, close\r\n\r\n"
        )
        answers = all_of(s)
    assert finals(answers) == [200, 200]
    assert answers.split(b"\r\n\r\n", 1)[1].startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("change", [-1, 1])
def test_a_body_that_differs_from_its_length_ends_the_connection(start, monkeypatch, change):
    """The client waits for no byte that never comes, and reads none as the next response."""
    monkeypatch.setattr("thalweg.server.http.answer.Response.__call__", _send_wrong_length(change))
    running = start()
    with raw(running) as s:
        s.sendall(HIDDEN * 2)
        assert all_of(s).count(b"HTTP/1.1 200") <= 1


def _send_wrong_length(change: int):
    async def respond(self, scope, receive, send):
        headers = [(b"content-length", b"%d" % (len(self.body) - change))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})

    return respond


def test_queries_are_not_logged(start, logged):
    running = start()
    httpx.get(running.url + "/version?api_key=sentinel")
    assert any("/version" in line for line in logged)
    assert not any("sentinel" in line for line in logged)


def answered(s: socket.socket) -> bool:
    """Is one request of this connection answered?"""
    s.sendall(HIDDEN)
    with contextlib.suppress(ConnectionError):
        return answer_of(s).startswith(b"HTTP/1.1 200 ")
    return False


def test_a_request_that_comes_as_an_idle_connection_would_close_is_answered(start):
    """Its bytes are there when the deadline passes, and nobody has read them."""
    running = start()
    with raw(running) as s:
        assert answered(s)

        called, sent = threading.Event(), threading.Event()

        def late() -> None:
            called.set()
            assert sent.wait(60)  # the client sends meanwhile
            (connection,) = running._server.server_state.connections
            connection._idle_late()

        running._loop.call_soon_threadsafe(late)
        assert called.wait(60)
        s.sendall(HIDDEN)
        sent.set()
        assert answer_of(s).startswith(b"HTTP/1.1 200 ")
    running._server.config.timeout_keep_alive = 0.05
    with raw(running) as s:
        assert answered(s)
        assert s.recv(100) == b""


def test_an_idle_connection_gives_way_where_there_are_too_many(start, monkeypatch):
    monkeypatch.setattr("thalweg.server.serve.connection_limit", lambda: 2)
    running = start()
    with raw(running) as first, raw(running) as second:
        assert answered(first)
        assert answered(second)
        with raw(running) as third:
            assert answered(third)
            assert first.recv(100) == b""
            assert answered(second)
