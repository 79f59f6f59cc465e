"""The model that a request names: in its body, its form or its query."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from starlette.requests import Request
from starlette.types import Message

from thalweg.server.http.bodies import load
from thalweg.server.http.multipart import boundary_of, spans_of


class _Head(msgspec.Struct):
    model: Any = None
    stream: Any = None


def read_head(data: bytes | bytearray, values: int) -> tuple[str | None, bool]:
    """The model that a JSON body names, and whether it asks for a stream. ApiError 400 for an invalid body."""
    try:
        head = msgspec.json.decode(data, type=_Head)
        model, stream = head.model, head.stream
    except (msgspec.DecodeError, RecursionError):
        body = load(data, values)  # says what is wrong
        model, stream = body.get("model"), body.get("stream")
    return model if isinstance(model, str) else None, stream is True


def read_form_model(data: bytes | bytearray, content_type: str) -> str | None:
    """The model that a multipart form names. ApiError for an invalid form."""
    for span in spans_of(data, boundary_of(content_type)):
        if span.name == "model" and span.filename is None:
            return bytes(data[span.start : span.end]).decode(errors="replace")
    return None


def take_query_model(http: Request) -> tuple[str | None, Request]:
    """The model that the query names, and the request without it."""
    name = http.query_params.get("model")
    if name is None:
        return None, http
    rest = [(k, v) for k, v in parse_qsl(http.scope["query_string"].decode("latin-1"), keep_blank_values=True) if k != "model"]
    return name, Request({**http.scope, "query_string": urlencode(rest).encode()}, http.receive)


def replay(http: Request, data: bytes | bytearray) -> Request:
    """The request with a body that was read already."""
    messages: list[Message] = [{"type": "http.request", "body": bytes(data), "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else await http.receive()

    return Request(http.scope, receive)
