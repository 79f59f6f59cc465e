"""Errors in this API's form. A stream that has begun ends with response.failed (`turn`)."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response

from thalweg.server.errors import ApiError, translate
from thalweg.server.http.answer import EventStream, failure
from thalweg.server.responses.asked import renamed


def refused(error: BaseException) -> Response:
    """`error` as an answer."""
    return failure(translate(renamed(error)))


def told(error: ApiError) -> dict[str, str]:
    """`error` as a response has it."""
    codes = {429: "rate_limit_exceeded"}
    return {
        "code": codes.get(error.status) or ("server_error" if error.status >= 500 else "invalid_prompt"),
        "message": error.message,
    }


def event(body: dict[str, Any]) -> bytes:
    """A frame. body: with `type`."""
    kind: str = body["type"]
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"


class Events(EventStream):
    """A stream whose errors are of this form."""

    def refused(self, error: BaseException) -> Response:
        return refused(error)

    def broken(self, error: BaseException) -> bytes:
        e = translate(renamed(error))
        said = told(e)
        return event({"type": "error", "sequence_number": 0, "code": said["code"], "message": e.message, "param": e.param})
