"""Request bodies: bytes within bounds, then JSON read strictly. Knows no endpoint.

JSON is RFC 8259 without options: UTF-8 without errors, no NaN or infinity, no number beyond a double, no key twice in
an object, bounded depth and number of values. The number of values is counted on the text, before any is made.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request

from thalweg.server.errors import ApiError

log = logging.getLogger(__name__)
T = TypeVar("T")
SMALL = 64 * 1024
"""Bodies up to this many bytes are read on the event loop. Longer ones are read on a thread."""
MAX_DEPTH = 64
MAX_VALUES = 2**18
"""Commas outside strings, where the model's context is not longer."""
MAX_STRINGS = 2**16
MAX_CONTAINERS = 2**14
_MARKS = re.compile(rb'"(?:[^"\\]|\\.)*"|[][{}:,]', re.DOTALL)
MAX_WAITING = 256 * 2**20
"""Bytes of bodies in memory at once, of all requests together."""


class Bodies:
    """All bodies a server holds: their bytes are charged as they arrive, and given back when the request is parsed."""

    def __init__(self, limit: int, values: int = MAX_VALUES, most: int = MAX_WAITING) -> None:
        """limit: bytes of one body. values: of one body. most: bytes of all."""
        self.limit, self.values, self._most, self.held = limit, values, max(most, limit), 0
        self._one = asyncio.Lock()
        """One large body at a time: each holds the interpreter for moments the event loop would like to have."""

    async def parse(
        self, request: Request, parse: Callable[[dict[str, Any]], T], arrived: Callable[[], object] | None = None
    ) -> T:
        """The body as a JSON object, given to `parse`. arrived: called when the body is there, before it is read. ApiError:
        not JSON (400, 415), too long (413), too much at once (429), the client left (499)."""
        self._check_kind(request)
        async with self._arriving(request, self.limit) as data:
            if arrived is not None:
                arrived()
            return await self.read(len(data), lambda: parse(load(data, self.values)))

    async def read(self, size: int, work: Callable[[], T]) -> T:
        """The result of `work` on `size` bytes of JSON: inline if they are few, otherwise on a thread, one at a time."""
        if size <= SMALL:
            return work()
        async with self._one:
            return await asyncio.to_thread(work)

    async def raw(self, request: Request, limit: int) -> bytearray:
        """A body of any type, of at most `limit` bytes, and at most the total for all bodies. ApiError as `parse`."""
        async with self._arriving(request, min(limit, self._most)) as data:
            return data

    @asynccontextmanager
    async def _arriving(self, request: Request, limit: int) -> AsyncIterator[bytearray]:
        """The body's bytes, which are charged while the block runs."""
        size, data = 0, bytearray()
        try:
            self._check_length(request, limit)
            async for piece in request.stream():
                size += len(piece)
                self.held += len(piece)
                if size > limit:
                    raise ApiError(f"the body has more than {limit} bytes, which is the limit", status=413)
                if self.held > self._most:
                    raise ApiError("too many long requests at once; try again later", status=429, retry_after=2)
                data += piece
            yield data
        except ClientDisconnect:
            log.debug("a client left after %d bytes of a body", size)
            raise ApiError("the client left", status=499) from None
        finally:
            self.held -= size

    def _check_kind(self, request: Request) -> None:
        kind = request.headers.get("content-type", "")
        if not is_json(kind):
            kind = kind.split(";")[0].strip().lower()
            raise ApiError(f"Content-Type must be application/json, not {kind[:100] or 'absent'!r}", status=415)

    def _check_length(self, request: Request, limit: int) -> None:
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > limit:
            raise ApiError(f"the body has {length} bytes; the limit is {limit}", status=413)
        if length.isdecimal() and self.held + int(length) > self._most:
            raise ApiError("too many long requests at once; try again later", status=429, retry_after=2)


def is_json(content_type: str) -> bool:
    kind = content_type.split(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def load(data: bytes | bytearray, values: int = MAX_VALUES) -> dict[str, Any]:
    """`data` as a JSON object. ApiError 400."""
    _check_counts(data, values)
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as e:
        where = _not_finite(data)
        if where:
            raise ApiError(f"{where}: must be a finite number", where) from None
        if e.msg.startswith("depth limit"):
            raise _too_deep() from None
        raise ApiError(f"the body is not valid JSON: {e.msg.split(':')[0]}") from None
    if not isinstance(body, dict):
        raise ApiError(f"the body must be a JSON object, not {type(body).__name__}")
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(body)
    json.loads(data, object_pairs_hook=_unique)  # a second reading, for duplicate keys
    return body


def _check_counts(data: bytes | bytearray, values: int) -> None:
    """On the text, so that a bomb is refused before it is made. Exact counts are only made where they could matter."""
    quotes = data.count(b'"')
    opening = data.count(b"[") + data.count(b"{")
    if data.count(b",") <= values and quotes <= 2 * MAX_STRINGS and opening <= MAX_CONTAINERS:
        return
    at, strings, commas, opening = 0, 0, 0, 0
    while at >= 0:
        quote = data.find(b'"', at)
        stop = len(data) if quote < 0 else quote
        commas += data.count(b",", at, stop)
        opening += data.count(b"[", at, stop) + data.count(b"{", at, stop)
        strings += 1
        if commas > values or strings > MAX_STRINGS or opening > MAX_CONTAINERS:
            raise _too_many(_field_at(data, min(stop, at + 8)))
        at = _string_end(data, quote) if quote >= 0 else -1
        at += at >= 0  # a string without an end is no JSON: the parser will say so


def _too_many(field: str) -> ApiError:
    words = "the body has too many values"
    return ApiError(f"{field}: {words}" if field else words, field or None)


def _field_at(data: bytes | bytearray, end: int) -> str:
    """The field that the bytes before `end` lead into, down to the first list. "": none, or a long name."""
    path: list[str] = []
    last, key, lists = b"", b"", 0
    for found in _MARKS.finditer(data, 0, end):
        mark = found[0]
        if mark == b"[":
            lists += 1
        elif mark == b"]":
            lists = max(lists - 1, 0)
        elif lists:
            continue
        elif mark == b"{":
            path.append(key[1:-1].decode(errors="replace"))
            key = b""
        elif mark == b"}":
            path, key = path[:-1], b""
        elif mark == b":":
            key = last
        elif mark == b",":
            key = b""
        else:
            last = mark
    names = [n for n in (*path, key[1:-1].decode(errors="replace")) if n]
    return ".".join(names) if all(n.isprintable() and len(n) <= 64 for n in names) else ""


def _string_end(data: bytes | bytearray, quote: int) -> int:
    """Where the string that begins at `quote` ends. -1: nowhere."""
    end = data.find(b'"', quote + 1)
    while end >= 0:
        slash = end
        while data[slash - 1] == 0x5C and slash - 1 > quote:
            slash -= 1
        if (end - slash) % 2 == 0:
            return end
        end = data.find(b'"', end + 1)
    return -1


def _too_deep(field: str = "") -> ApiError:
    words = f"the body is nested more than {MAX_DEPTH} levels deep"
    return ApiError(f"{field}: {words}" if field else words, field or None)


def _check_depth(body: dict[str, Any]) -> None:
    """Level by level. The parser's own limit bounds how many there are."""
    level: list[tuple[str, Any]] = [("", body)]
    for _ in range(MAX_DEPTH):
        children = (
            (field or k, v) for field, c in level for k, v in (c.items() if isinstance(c, dict) else (("", v) for v in c))
        )
        level = [(field, v) for field, v in children if isinstance(v, dict | list)]
        if not level:
            return
    field = level[0][0]
    raise _too_deep(field if field.isprintable() and len(field) <= 64 else "")


def _unique(pairs: list[tuple[str, Any]]) -> None:
    keys = {k for k, _ in pairs}
    if len(keys) < len(pairs):
        name = next(k for i, (k, _) in enumerate(pairs) if k in dict(pairs[:i]))[:64]
        raise ApiError(f"{name}: the key is given twice in one object", name)


def _not_finite(data: bytes | bytearray) -> str:
    """The path of the first NaN, infinity or number beyond a double, if the body is JSON otherwise. "": none."""
    if len(data) > SMALL:
        return ""
    try:
        return _find(json.loads(data.decode(), parse_int=_as_float), "")
    except (ValueError, RecursionError):
        return ""


def _as_float(digits: str) -> float:
    return float(digits) if len(digits) <= 400 else math.inf


def _find(value: Any, path: str) -> str:
    if isinstance(value, float):
        return "" if math.isfinite(value) else path
    items: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = [(f"{path}.{k}" if path else str(k), v) for k, v in value.items()]
    elif isinstance(value, list):
        items = [(f"{path}[{i}]", v) for i, v in enumerate(value)]
    return next((found for p, v in items if (found := _find(v, p))), "")
