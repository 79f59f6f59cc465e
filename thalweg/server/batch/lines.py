"""One line of a batch: a request read from JSON, put to the server's own routes, and its answer as JSON.

Format: https://platform.openai.com/docs/guides/batch: {"custom_id", "method", "url", "body"} in, {"id", "custom_id",
"response": {"status_code", "request_id", "body"}, "error"} out. The application is called in process, so a line is checked,
run and answered as the same request over HTTP. Knows no file and no socket.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import ASGIApp, Message

from thalweg.server.errors import ApiError

MAX_LINE = 1 << 28
"""Bytes of a line."""
MAX_ID = 512
ROUTES = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/score", "/v1/rerank",
    "/v2/rerank", "/score", "/rerank", "/pooling", "/classify",
)  # fmt: skip
"""What a line may ask for, where the model served has it."""
_FIELDS = ("custom_id", "method", "url", "body")


@dataclass(frozen=True, slots=True)
class Line:
    """A request. `error`: why it is none; the rest is what could be read of it."""

    custom_id: str | None
    url: str = ""
    body: bytes = b""
    error: ApiError | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """json: the line of the output file, without its end."""

    ok: bool
    json: bytes


def parse(data: bytes) -> Line:
    """The request of a line. What is wrong with it becomes its answer."""
    custom_id = None
    try:
        if len(data) > MAX_LINE:
            raise ApiError(f"the line has {len(data)} bytes; the limit is {MAX_LINE}", "body")
        try:
            said = orjson.loads(data)
        except orjson.JSONDecodeError as e:
            raise ApiError(f"the line is not valid JSON: {e}") from None
        if not isinstance(said, dict):
            raise ApiError(f"the line must be a JSON object with {', '.join(_FIELDS)}")
        custom_id = said.get("custom_id") if isinstance(said.get("custom_id"), str) else None
        return Line(custom_id, *_request(said))
    except ApiError as e:
        return Line(custom_id, error=e)


def _request(said: dict[str, Any]) -> tuple[str, bytes]:
    """(route, body)."""
    unknown = sorted(set(map(str, said)) - set(_FIELDS))
    if unknown:
        raise ApiError(f"{unknown[0]!r:.80} is no field of a batch line; it has {', '.join(_FIELDS)}", unknown[0][:80])
    name = said.get("custom_id")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_ID:
        raise ApiError(f"custom_id must be text of 1 to {MAX_ID} characters", "custom_id")
    if said.get("method", "POST") != "POST":
        raise ApiError(f"method must be POST, not {said['method']!r:.80}", "method")
    url, body = said.get("url"), said.get("body")
    if url not in ROUTES:
        raise ApiError(f"url: {url!r:.80} is not one of {', '.join(ROUTES)}", "url")
    if not isinstance(body, dict):
        raise ApiError("body must be a JSON object: what the route takes", "body")
    if body.get("stream"):
        raise ApiError("stream: a batch answers each request as a whole; leave it out", "stream")
    return str(url), orjson.dumps(body)


async def answer(app: ASGIApp, line: Line) -> Answer:
    """The line's answer by `app`, which gets the request as if it came over HTTP."""
    if line.error is not None:
        return _written(line.custom_id, line.error.status, orjson.loads(line.error.bytes()))
    status, data = await _called(app, line)
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        body = {"error": {"message": data[:1000].decode(errors="replace"), "type": "internal_error"}}
    return _written(line.custom_id, status, body)


async def _called(app: ASGIApp, line: Line) -> tuple[int, bytes]:
    """(status, body) of one request."""
    asked, ended = [True], asyncio.Event()
    status, parts = 500, list[bytes]()

    async def receive() -> Message:
        if asked:
            asked.clear()
            return {"type": "http.request", "body": line.body, "more_body": False}
        await ended.wait()  # the client stays until it is answered
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": line.url, "raw_path": line.url.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json"),
                    (b"content-length", str(len(line.body)).encode())],
        "client": ("127.0.0.1", 0), "server": ("127.0.0.1", 0),
    }  # fmt: skip
    try:
        await app(scope, receive, send)
    finally:
        ended.set()
    return status, b"".join(parts)


def _written(custom_id: str | None, status: int, body: Any) -> Answer:
    ok = status == 200
    error = None
    if not ok:
        said = body.get("error") if isinstance(body, dict) else None
        told = said if isinstance(said, dict) else {"message": str(body)[:1000]}
        error = {"code": str(told.get("type") or told.get("code") or status), "message": told.get("message")}
    request = body.get("id") if isinstance(body, dict) else None
    out = {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": custom_id,
        "response": {"status_code": status, "request_id": request or f"req_{uuid.uuid4().hex}", "body": body},
        "error": error,
    }
    return Answer(ok, orjson.dumps(out))
