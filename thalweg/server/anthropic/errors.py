"""Errors in this API's form, as an answer and in the middle of a stream."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response

from thalweg.server.anthropic.asked import renamed
from thalweg.server.errors import ApiError, translate
from thalweg.server.http.answer import EventStream, failure

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


def body_of(error: ApiError) -> dict[str, Any]:
    kind = TYPES.get(error.status) or ("invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message, "param": error.param}}


def refused(error: BaseException) -> Response:
    """`error` as an answer."""
    e = translate(renamed(error))
    answer = failure(e)
    answer.body = orjson.dumps(body_of(e))
    answer.headers["content-length"] = str(len(answer.body))
    return answer


def event(name: str, body: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"


class Events(EventStream):
    """A stream whose errors are of this form."""

    def refused(self, error: BaseException) -> Response:
        return refused(error)

    def broken(self, error: BaseException) -> bytes:
        return event("error", body_of(translate(renamed(error))))
