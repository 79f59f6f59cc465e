"""Where a request begins and ends: what is ambiguous is refused, what is not is read as another parser reads it."""

from __future__ import annotations

import itertools
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.server.http.wire import MAX_FIELDS, MAX_HEAD, BodyDecoder, Head, HttpRequestError, find_head, parse_head


def head(text: bytes) -> Head:
    data = bytearray(text)
    size = find_head(data)
    assert size == len(text)
    return parse_head(bytes(data))


def request(*fields: bytes, first: bytes = b"POST / HTTP/1.1", host: bytes = b"Host: localhost") -> bytes:
    return b"\r\n".join([first, *([host] if host else []), *fields, b"", b""])


REFUSED = {
    "both lengths": (request(b"Content-Length: 5", b"Transfer-Encoding: chunked"), 400),
    "both lengths, other order": (request(b"Transfer-Encoding: chunked", b"Content-Length: 5"), 400),
    "two lengths": (request(b"Content-Length: 5", b"Content-Length: 5"), 400),
    "two different lengths": (request(b"Content-Length: 5", b"content-length: 6"), 400),
    "list of lengths": (request(b"Content-Length: 5, 5"), 400),
    "signed length": (request(b"Content-Length: +5"), 400),
    "hexadecimal length": (request(b"Content-Length: 0x5"), 400),
    "huge length": (request(b"Content-Length: " + b"9" * 30), 400),
    "empty length": (request(b"Content-Length:"), 400),
    "two codings": (request(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), 400),
    "unknown coding": (request(b"Transfer-Encoding: xchunked"), 501),
    "coding list": (request(b"Transfer-Encoding: gzip, chunked"), 501),
    "identity coding": (request(b"Transfer-Encoding: identity"), 501),
    "coding in quotes": (request(b'Transfer-Encoding: "chunked"'), 501),
    "vertical tab in coding": (request(b"Transfer-Encoding: \x0bchunked"), 400),
    "coding with 1.0": (request(b"Transfer-Encoding: chunked", first=b"POST / HTTP/1.0"), 400),
    "space before colon": (request(b"Transfer-Encoding : chunked"), 400),
    "folded line": (request(b"X: a", b" b"), 400),
    "folded with tab": (request(b"X: a", b"\tb"), 400),
    "bare LF": (b"GET / HTTP/1.1\nHost: localhost\n\n", 400),
    "one bare LF": (b"GET / HTTP/1.1\r\nHost: localhost\nX: b\r\n\r\n", 400),
    "bare CR": (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n", 400),
    "NUL": (request(b"X: a\0b"), 400),
    "no colon": (request(b"Nonsense"), 400),
    "empty name": (request(b": x"), 400),
    "non-ASCII name": (request("Ké: x".encode()), 400),
    "no host": (request(host=b""), 400),
    "two hosts": (request(b"Host: b"), 400),
    "host with path": (request(host=b"Host: localhost/v1"), 400),
    "host with query": (request(host=b"Host: localhost?"), 400),
    "encoded body": (request(b"Content-Encoding: gzip", b"Content-Length: 5"), 415),
    "odd expectation": (request(b"Expect: tea"), 417),
    "HTTP/0.9": (b"GET /\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\n", 505),
    "HTTP/1.2": (request(first=b"GET / HTTP/1.2"), 505),
    "absolute target": (request(first=b"GET http://a/ HTTP/1.1"), 400),
    "no target": (request(first=b"GET  HTTP/1.1"), 400),
    "space in target": (request(first=b"GET /a b HTTP/1.1"), 400),
    "tab for space": (request(first=b"GET\t/ HTTP/1.1"), 400),
    "raw UTF-8 in target": (request(first="GET /é HTTP/1.1".encode()), 400),
    "CONNECT": (request(first=b"CONNECT a:1 HTTP/1.1"), 400),
    "asterisk": (request(first=b"OPTIONS * HTTP/1.1"), 400),
    "many fields": (request(*[b"X: y"] * (MAX_FIELDS + 1)), 431),
}


@pytest.mark.parametrize(("text", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_ambiguous_requests_are_refused(text, status):
    with pytest.raises(HttpRequestError) as e:
        head(text)
    assert e.value.status == status


def test_a_long_head_is_refused_before_it_ends():
    with pytest.raises(HttpRequestError) as e:
        find_head(bytearray(b"GET /" + b"a" * MAX_HEAD))
    assert e.value.status == 431
    assert find_head(bytearray(b"GET / HTTP/1.1\r\nX: " + b"a" * 1000)) == 0


def test_what_is_read():
    h = head(request(b"Content-Length:  12\t", b"X-A: b c", b"Connection: Keep-Alive, CLOSE", first=b"PUT /a?b=c HTTP/1.1"))
    assert (h.method, h.target, h.length, h.keep_alive) == ("PUT", b"/a?b=c", 12, False)
    assert (b"x-a", b"b c") in h.headers
    assert head(request()).length == 0
    assert head(request()).keep_alive
    assert not head(request(first=b"GET / HTTP/1.0")).keep_alive
    assert head(request(b"Expect: 100-Continue", b"Content-Length: 1")).expects
    assert head(request(b"Transfer-Encoding: Chunked")).length is None
    assert head(request(host=b"Host: [::1]:80")).length == 0


class Oracle:
    """llhttp's reading."""

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.body, self.done = b"", False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value))

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.done = True


TOKENS = st.text("abcXYZ019-_!#$%&'*+.^`|~", min_size=1, max_size=8).map(lambda s: b"x-" + s.encode())
VALUES = st.binary(max_size=12).map(lambda b: bytes(c for c in b if c == 9 or 32 <= c != 127).strip())


@given(st.lists(st.tuples(TOKENS, VALUES), max_size=10))
def test_headers_are_read_as_llhttp_reads_them(fields):
    text = request(*[n + b": " + v for n, v in fields])
    oracle = Oracle()
    httptools.HttpRequestParser(oracle).feed_data(text)
    assert head(text).headers == oracle.fields


def decode(body: BodyDecoder, wire: bytes, cuts: list[int]) -> tuple[bytes, bytes]:
    """(the body, what is left over) when `wire` arrives in pieces."""
    buffer, out = bytearray(), b""
    edges = sorted({min(c, len(wire)) for c in cuts} | {0, len(wire)})
    for a, b in itertools.pairwise(edges):
        buffer += wire[a:b]
        if not body.done:
            out += body.take(buffer)
    return out, bytes(buffer)


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 300), max_size=12), st.binary(max_size=9)
)
def test_chunks_are_read_however_they_are_cut(pieces, cuts, after):
    wire = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"
    oracle = Oracle()
    httptools.HttpRequestParser(oracle).feed_data(request(b"Transfer-Encoding: chunked") + wire)
    body = BodyDecoder(None)
    assert decode(body, wire + after, cuts) == (oracle.body, after)
    assert body.done
    assert oracle.done


@given(st.binary(max_size=50), st.integers(0, 60), st.lists(st.integers(0, 60), max_size=5))
def test_a_body_of_known_length_ends_there(data, length, cuts):
    body = BodyDecoder(length)
    out, left = decode(body, data, cuts)
    assert out == data[:length]
    assert left == data[length:]
    assert body.done == (len(data) >= length)


@pytest.mark.parametrize(
    "wire",
    [
        b"5;a=b\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"\r\n",
        b"5\nhello\n0\n\n",
        b"5\r\nhelloo\r\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"0\r\nTrailer: x\r\n\r\n",
        b"fffffffffffffffff\r\n",
        b"1" * 40,
        b"5\r",
    ],
)
def test_malformed_chunks_are_refused(wire):
    body = BodyDecoder(None)
    wire = wire if len(wire) > 2 or wire == b"\r\n" else wire + b"x"
    for cuts in ([], list(range(60))):
        with pytest.raises(HttpRequestError) as e:
            decode(BodyDecoder(None), wire, cuts)
        assert e.value.status == 400
    assert not body.done


def test_an_endless_chunk_size_is_not_kept() -> None:
    buffer: Any = bytearray(b"0" * 100_000)
    with pytest.raises(HttpRequestError):
        BodyDecoder(None).take(buffer)
