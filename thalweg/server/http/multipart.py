"""multipart/form-data (RFC 7578) of a complete body. Few parts, bounded heads, nothing nested."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from thalweg.server.errors import ApiError

MOST_PARTS = 16
MOST_HEAD = 4096
"""Bytes of a part's head."""
MOST_FIELD = 4096
"""Bytes of a part other than the file of a form."""
WINDOW = 1 << 20
"""Bytes searched at once."""
BOUNDARY = re.compile(r'multipart/form-data\s*;.*?\bboundary=(?:"([^"\r\n]{1,200})"|([^\s;,"]{1,200}))', re.ASCII | re.I)
VALUE = rb'%s="((?:[^"\\\r\n]|\\.)*)"'
NAME, FILENAME = (re.compile(rb"(?:^|[;\s])" + VALUE % n, re.I) for n in (b"name", b"filename"))


class MultipartPart(NamedTuple):
    filename: str | None
    """None: a field, not a file."""
    data: bytes


def boundary_of(content_type: str) -> bytes:
    """ApiError 415 for another type of body."""
    found = BOUNDARY.match(content_type)
    if found is None:
        raise ApiError("Content-Type must be multipart/form-data with a boundary", status=415)
    return (found[1] or found[2]).encode()


class PartSpan(NamedTuple):
    """Where the content of a part is in its body."""

    name: str
    filename: str | None
    start: int
    end: int


def spans_of(data: bytes | bytearray, boundary: bytes) -> Iterator[PartSpan]:
    """Parts in their order. An invalid body raises ApiError 400 where the error is found."""
    mark = b"\r\n--" + boundary
    if data.startswith(mark[2:]):
        at = len(mark) - 2
    elif (first := _find(data, mark, 0)) >= 0:
        at = first + len(mark)
    else:
        raise _form_error()
    for count in range(MOST_PARTS + 1):
        end = _find(data, mark, at)
        if end < 0:
            if data[at : at + 2] != b"--":
                raise _form_error()
            return
        if count == MOST_PARTS:
            raise ApiError(f"the body has more than {MOST_PARTS} parts")
        yield _span(data, at, end)
        at = end + len(mark)


def parts_of(data: bytes | bytearray, boundary: bytes) -> dict[str, MultipartPart]:
    """Parts by name. Values of lists (`name[]`) are joined by commas. ApiError 400 for another repeated name, and for an
    invalid body."""
    out: dict[str, MultipartPart] = {}
    for key, filename, start, end in spans_of(data, boundary):
        content = bytes(memoryview(data)[start:end])
        if key in out and key.endswith("[]"):
            content = out[key].data + b"," + content
        elif key in out:
            raise _repeat_error(key)
        out[key] = MultipartPart(filename, content)
    return out


def file_of(data: bytearray, boundary: bytes, name: str) -> tuple[str | None, dict[str, bytes]]:
    """Reduces `data` in place to the content of the part `name`, without a copy. Returns its filename (None: there is no such
    file) and the other parts by name. ApiError 400 as `parts_of`, and for another part of more than MOST_FIELD bytes."""
    found: PartSpan | None = None
    fields: dict[str, bytes] = {}
    for span in spans_of(data, boundary):
        if span.name in fields or (found is not None and span.name == name):
            raise _repeat_error(span.name)
        if span.name == name and span.filename is not None:
            found = span
            continue
        if span.end - span.start > MOST_FIELD:
            raise ApiError(f"{span.name[:80]}: has more than {MOST_FIELD} bytes", span.name[:80])
        fields[span.name] = bytes(data[span.start : span.end])
    start, end = (found.start, found.end) if found is not None else (0, 0)
    del data[end:]
    del data[:start]
    return None if found is None else found.filename, fields


def _find(data: bytes | bytearray, mark: bytes, at: int) -> int:
    """The next `mark`, -1 if there is none. A piece at a time: other threads get the interpreter in between."""
    while at < len(data):
        found = data.find(mark, at, at + WINDOW + len(mark) - 1)
        if found >= 0:
            return found
        at += WINDOW
    return -1


def _span(data: bytes | bytearray, start: int, end: int) -> PartSpan:
    """The part between two marks."""
    if data[start : start + 2] != b"\r\n" or end < start + 2:
        raise _form_error()
    body = data.find(b"\r\n\r\n", start, min(end, start + MOST_HEAD))
    if body < 0:
        raise _form_error()
    head = bytes(data[start:body])
    disposition = next((line for line in head.split(b"\r\n") if line.lower().startswith(b"content-disposition:")), b"")
    name, filename = NAME.search(disposition), FILENAME.search(disposition)
    if name is None:
        raise _form_error()
    return PartSpan(_text(name[1]), None if filename is None else _text(filename[1]), body + 4, end)


def _form_error() -> ApiError:
    return ApiError("the body is not valid multipart/form-data")


def _repeat_error(key: str) -> ApiError:
    return ApiError(f"{key[:80]}: given twice", key[:80])


def _text(raw: bytes) -> str:
    return re.sub(rb"\\(.)", rb"\1", raw).decode(errors="replace")
