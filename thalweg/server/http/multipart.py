"""multipart/form-data (RFC 7578), of a body that is there as a whole. Few parts, bounded heads, nothing nested."""

from __future__ import annotations

import re
from typing import NamedTuple

from thalweg.server.errors import ApiError

MOST_PARTS = 16
MOST_HEAD = 4096
"""Bytes of a part's head."""
BOUNDARY = re.compile(r'multipart/form-data\s*;.*?\bboundary=(?:"([^"\r\n]{1,200})"|([^\s;,"]{1,200}))', re.ASCII | re.I)
VALUE = rb'%s="((?:[^"\\\r\n]|\\.)*)"'
NAME, FILENAME = (re.compile(rb"(?:^|[;\s])" + VALUE % n, re.I) for n in (b"name", b"filename"))


class Part(NamedTuple):
    filename: str | None
    """None: a field, not a file."""
    data: bytes


def boundary_of(content_type: str) -> bytes:
    """ApiError 415 for another type of body."""
    found = BOUNDARY.match(content_type)
    if found is None:
        raise ApiError("Content-Type must be multipart/form-data with a boundary", status=415)
    return (found[1] or found[2]).encode()


def parts_of(data: bytes, boundary: bytes) -> dict[str, Part]:
    """Parts by name. Of lists (`name[]`) the values are joined by commas. ApiError 400 for another that is given twice, and for
    what is no such body."""
    broken = ApiError("the body is not valid multipart/form-data")
    pieces = (b"\r\n" + data).split(b"\r\n--" + boundary, MOST_PARTS + 2)
    if len(pieces) > MOST_PARTS + 2:
        raise ApiError(f"the body has more than {MOST_PARTS} parts")
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise broken
    out: dict[str, Part] = {}
    for piece in pieces[1:-1]:
        if not piece.startswith(b"\r\n"):
            raise broken
        end = piece.find(b"\r\n\r\n", 0, MOST_HEAD)
        if end < 0:
            raise broken
        head, content = piece[:end], piece[end + 4 :]
        said = next((line for line in head.split(b"\r\n") if line.lower().startswith(b"content-disposition:")), b"")
        name, filename = NAME.search(said), FILENAME.search(said)
        if name is None:
            raise broken
        key = _text(name[1])
        if key in out and key.endswith("[]"):
            content = out[key].data + b"," + content
        elif key in out:
            raise ApiError(f"{key[:80]}: given twice", key[:80])
        out[key] = Part(None if filename is None else _text(filename[1]), content)
    return out


def _text(raw: bytes) -> str:
    return re.sub(rb"\\(.)", rb"\1", raw).decode(errors="replace")
