"""HTTP/1.1 messages as bytes: where a request begins and ends. It decides strictly, because two readings of one
message are how requests are smuggled past a proxy. Ambiguous messages are refused, never repaired.

Pure functions and a decoder. Knows no socket, no clock and no route. Rules: RFC 9110 and 9112 (sections cited below), without
unneeded options: line folding, chunk extensions, trailers, encodings of request bodies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_HEAD = 16 * 1024
"""Bytes of request line and header fields together."""
MAX_FIELDS = 64
MAX_CHUNK_LINE = 20
"""Bytes of a chunk-size line: sixteen digits and some."""

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}) ([\x21-\x7e]+) HTTP/(\d)\.(\d)")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_HOST = re.compile(rb"(?:[A-Za-z0-9._~%!$&'()*+,;=\-]*|\[[0-9A-Fa-f:.]+\])(?::\d{0,5})?")
_BARE_LF = re.compile(rb"(?<!\r)\n|\r(?![\n])(?!\Z)")
_SINGLE = (b"content-length", b"transfer-encoding", b"host", b"content-type", b"content-encoding", b"authorization", b"expect")
"""Fields that would be ambiguous if repeated. (authorization: refused by the key check, not here.)"""


class HttpRequestError(Exception):
    """The bytes are no request this server reads. status: 400, 413, 415, 417, 431, 501 or 505. The connection must close."""

    def __init__(self, status: int, message: str) -> None:
        self.status, self.message = status, message
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Head:
    """A request's first part. length None: chunked."""

    method: str
    target: bytes
    """Path and query, as sent."""
    minor: int
    """HTTP/1.minor: 0 or 1."""
    headers: list[tuple[bytes, bytes]]
    """Names in lower case."""
    length: int | None
    keep_alive: bool
    expects: bool
    """Does the client wait for 100 Continue before it sends the body?"""


def find_head(data: bytearray, most: int = MAX_HEAD) -> int:
    """Bytes of the head that `data` begins with, its empty line included. 0 if more must come. HttpRequestError 400, or
    431 if it has more than `most`."""
    end = data.find(b"\r\n\r\n", 0, most + 4)
    if _BARE_LF.search(data, 0, end + 4 if end >= 0 else min(len(data), most)):
        raise HttpRequestError(400, "a line ends without CR LF")
    if end < 0:
        if len(data) > most:
            raise HttpRequestError(431, f"the header is longer than {most} bytes")
        return 0
    return end + 4


def parse_head(raw: bytes, most: int = MAX_FIELDS) -> Head:
    """`raw`: the bytes delimited by `find_head`. HttpRequestError 431 if it has more than `most` fields."""
    first, *lines = raw[:-4].split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise HttpRequestError(400, "the first line is not METHOD PATH HTTP/1.1")
    method, target, major, minor = match.groups()
    if major != b"1" or minor not in (b"0", b"1"):
        raise HttpRequestError(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
    if not target.startswith(b"/") or b"#" in target:
        raise HttpRequestError(400, "the request target must be a path")
    if len(lines) > most:
        raise HttpRequestError(431, f"more than {most} header fields")
    headers = [_field(line) for line in lines]
    one = _singles(headers)
    _check_host(one.get(b"host"), minor == b"1")
    if one.get(b"content-encoding", b"identity").lower() not in (b"identity", b""):
        raise HttpRequestError(415, "encoded request bodies are not read; send the body as it is")
    expect = one.get(b"expect")
    if expect is not None and expect.lower() != b"100-continue":
        raise HttpRequestError(417, "the only expectation met is 100-continue")
    connection = {t.strip().lower() for k, v in headers if k == b"connection" for t in v.split(b",")}
    return Head(
        method.decode(),
        target,
        int(minor),
        headers,
        _length(one, minor == b"1"),
        minor == b"1" and b"close" not in connection,
        expect is not None and minor == b"1",
    )


def _field(line: bytes) -> tuple[bytes, bytes]:
    """RFC 9112, 5: no space before the colon, no folding, no control characters."""
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(name):
        raise HttpRequestError(400, "a header field is malformed")
    value = value.strip(b" \t")
    if not _VALUE.fullmatch(value):
        raise HttpRequestError(400, "a header field holds a control character")
    return name.lower(), value


def _singles(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _SINGLE:
            if name in found and name != b"authorization":
                raise HttpRequestError(400, f"the header field {name.decode()} is given twice")
            found[name] = value
    return found


def _check_host(host: bytes | None, required: bool) -> None:
    """RFC 9112, 3.2."""
    if host is None and required:
        raise HttpRequestError(400, "the header field host is missing")
    if host is not None and not _HOST.fullmatch(host):
        raise HttpRequestError(400, "the header field host is malformed")


def _length(one: dict[bytes, bytes], chunks: bool) -> int | None:
    """RFC 9112, 6.3: exactly one way to say how long the body is."""
    length, coding = one.get(b"content-length"), one.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise HttpRequestError(400, "content-length and transfer-encoding must not both be given")
        if not chunks:
            raise HttpRequestError(400, "HTTP/1.0 has no transfer-encoding")
        if coding.lower() != b"chunked":
            raise HttpRequestError(501, "the only transfer-encoding read is chunked")
        return None
    if length is None:
        return 0
    if not (length.isdigit() and len(length) <= 18):
        raise HttpRequestError(400, "content-length is not a number")
    return int(length)


class BodyDecoder:
    """Removes a body's bytes from the front of a buffer. length None: chunked, without extensions or trailers."""

    def __init__(self, length: int | None) -> None:
        self._chunked = length is None
        self._left = length or 0
        """Bytes left of the body, or of the chunk."""
        self._in_chunk = False
        self.done = length == 0

    def take(self, buffer: bytearray) -> bytes:
        """The body's bytes in `buffer`, removed from the buffer. `done` is set at the end. HttpRequestError 400."""
        if not self._chunked:
            return self._cut(buffer)
        pieces = []
        while not self.done:
            if self._left:
                piece = self._cut(buffer)
                if not piece:
                    break
                pieces.append(piece)
            elif not (self._chunk_end(buffer) if self._in_chunk else self._chunk_line(buffer)):
                break
        return b"".join(pieces)

    def _cut(self, buffer: bytearray) -> bytes:
        piece = bytes(buffer[: self._left])
        del buffer[: self._left]
        self._left -= len(piece)
        self.done = not self._chunked and self._left == 0
        return piece

    def _chunk_end(self, buffer: bytearray) -> bool:
        """The CR LF after a chunk's bytes."""
        if not b"\r\n".startswith(buffer[:2]):
            raise HttpRequestError(400, "a chunk is longer than it says")
        if len(buffer) < 2:
            return False
        del buffer[:2]
        self._in_chunk = False
        return True

    def _chunk_line(self, buffer: bytearray) -> bool:
        """The line with a chunk's size. An empty line follows that of the last chunk, 0."""
        end = buffer.find(b"\r\n", 0, MAX_CHUNK_LINE)
        line = bytes(buffer[:end] if end >= 0 else buffer[:MAX_CHUNK_LINE].rstrip(b"\r"))
        if not re.fullmatch(rb"[0-9A-Fa-f]{0,16}", line) or (end < 0 and len(buffer) >= MAX_CHUNK_LINE) or end == 0:
            raise HttpRequestError(400, "a chunk size is malformed (extensions are not read)")
        if end < 0:
            return False
        size = int(line, 16)
        if size:
            del buffer[: end + 2]
            self._left, self._in_chunk = size, True
            return True
        rest = bytes(buffer[end + 2 : end + 4])
        if not b"\r\n".startswith(rest):
            raise HttpRequestError(400, "trailers are not read")
        if len(rest) < 2:
            return False
        del buffer[: end + 4]
        self.done = True
        return True
