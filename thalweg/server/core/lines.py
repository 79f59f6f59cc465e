"""Requests as lines of a batch file, answered by the same route functions as over HTTP, and without a socket.

A line is `{"custom_id", "method": "POST", "url", "body"}`. The answer's line has the answer's status and body. The Batches
API and `thalweg run-batch` share this.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from thalweg.server.core.lifecycle import RequestScope
from thalweg.server.errors import ApiError, translate
from thalweg.server.http.answer import failure
from thalweg.server.http.bodies import MAX_VALUES, SMALL, Bodies, load

Endpoint = Callable[[Request], Awaitable[Response]]
AROUND = 4096
"""Bytes of a line besides its body."""
MOST_WAITS = 10_000
"""Times that a line waits for a place in the server's queue before its refusal is its answer."""


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a batch file, checked."""

    custom_id: str
    url: str
    body: bytes


@dataclass(frozen=True, slots=True)
class LineAnswer:
    line: bytes
    """JSON, without the line's end."""
    ok: bool
    """Was the answer's status 200?"""


def read(raw: bytes, urls: Mapping[str, Endpoint], values: int = MAX_VALUES) -> Line:
    """A checked line. ApiError names the wrong key. values: see http/bodies."""
    requested = load(raw, values)
    custom_id, method, url, body = (requested.get(k) for k in ("custom_id", "method", "url", "body"))
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= 512:
        raise ApiError("custom_id: must be a string of 1 to 512 characters", "custom_id")
    if method not in (None, "POST"):
        raise ApiError(f"method: must be POST, not {str(method)[:40]!r}", "method")
    if not isinstance(url, str) or url not in urls:
        raise ApiError(f"url: must be one of {', '.join(sorted(urls))}, not {str(url)[:80]!r}", "url")
    if not isinstance(body, dict):
        raise ApiError("body: must be an object, the request itself", "body")
    for name in ("stream", "background"):
        if body.get(name):
            raise ApiError(f"body.{name}: not supported for an answer in a file; remove the field", f"body.{name}")
    return Line(custom_id, url, orjson.dumps(body))


class LineRunner:
    """Answers lines. endpoints: the routes a line may name, by path, as `routes.described` makes them."""

    def __init__(self, endpoints: Mapping[str, Endpoint], bodies: Bodies) -> None:
        """bodies: bounds a line as it bounds the body of a request."""
        self.endpoints, self._bodies = dict(endpoints), bodies

    def check_size(self, size: int) -> None:
        """ApiError 413 for a line of so many bytes, before it is in memory."""
        most = self._bodies.limit + AROUND
        if size > most:
            raise ApiError(f"the line has {size} bytes; a request has at most {most} (the server's --max-body)", status=413)

    def read(self, raw: bytes) -> Line:
        """For a thread, where the line is long."""
        self.check_size(len(raw))
        return read(raw, self.endpoints, self._bodies.values)

    async def answer(self, raw: bytes, client: str = "", owner: str = "") -> LineAnswer:
        """The line that answers the line `raw`. Never fails: an error becomes the answer. client, owner: the client's host and
        key, as of a request over HTTP."""
        line = await self._read(raw)
        if isinstance(line, LineAnswer):
            return line
        del raw  # it may be long, and the answer may take long
        answer = await self.ask(line, client, owner)
        if len(answer.body) <= SMALL:
            return encode_line(line.custom_id, answer)
        return await asyncio.to_thread(encode_line, line.custom_id, answer)

    async def _read(self, raw: bytes) -> Line | LineAnswer:
        """The line, or the answer to an invalid one. On a thread if it is long."""
        try:
            return await self._bodies.read(len(raw), lambda: self.read(raw))
        except Exception as e:
            refused = failure(e)
            return await self._bodies.read(len(raw), lambda: encode_line(custom_id_of(raw), refused))

    async def ask(self, line: Line, client: str = "", owner: str = "") -> Response:
        """The route's own answer. A full queue is waited for."""
        for _ in range(MOST_WAITS):
            answer = await _call(self.endpoints[line.url], line, client, owner)
            if answer.status_code != 429:
                break
            await asyncio.sleep(min(1.0, float(answer.headers.get("retry-after", 1)) / 4))
        return answer


async def in_order(lines: LineRunner, raws: Iterable[bytes], at_once: int) -> AsyncGenerator[LineAnswer, None]:
    """An answer for each line, in the order of the lines. At most `at_once` lines are read ahead of the awaited answer, run
    together, and held. Two lines of one custom_id are both answered. Closing it ends the running lines."""
    running: deque[asyncio.Task[LineAnswer]] = deque()
    try:
        for raw in raws:
            if len(running) == at_once:
                yield await running.popleft()
            running.append(asyncio.create_task(lines.answer(raw)))
        while running:
            yield await running.popleft()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _call(endpoint: Endpoint, line: Line, client: str, owner: str) -> Response:
    messages: list[Message] = [{"type": "http.request", "body": line.body, "more_body": False}]
    never = asyncio.Event()

    async def receive() -> Message:
        if not messages:
            await never.wait()  # nobody leaves
        return messages.pop()

    visit = RequestScope()
    scope = {
        "type": "http",
        "method": "POST",
        "path": line.url,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(line.body))],
        "client": (client, 0),
        "thalweg.visit": visit,
        "thalweg.tenant": owner,
    }
    try:
        return await endpoint(Request(scope, receive))
    except Exception as e:  # rows make answers of errors; this is for endpoints of other makers
        return failure(translate(e))
    finally:
        visit.close()


def encode_line(custom_id: str | None, answer: Response) -> LineAnswer:
    """`answer` as a line."""
    number = uuid.uuid4().hex
    body: Any = orjson.loads(answer.body) if answer.body else None
    out = {
        "id": f"batch_req_{number}",
        "custom_id": custom_id,
        "response": {"status_code": answer.status_code, "request_id": f"req_{number}", "body": body},
        "error": None,
    }
    return LineAnswer(orjson.dumps(out), answer.status_code == 200)


def custom_id_of(raw: bytes) -> str | None:
    """The id of a line that may be wrong otherwise."""
    try:
        given = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    found = given.get("custom_id") if isinstance(given, dict) else None
    return found if isinstance(found, str) else None
