"""Errors in this API's form: a message, and here the field too."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response

from thalweg.errors import RequestError
from thalweg.server.errors import ApiError, translate
from thalweg.server.http.answer import EventStream, failure

NAMES = {
    "stop": "stop_sequences",
    "top_k": "k",
    "top_p": "p",
    "prompt": "messages",
    "response_format.json_schema.schema": "response_format.json_schema",
    "truncate_prompt_tokens": "max_tokens",
    "dimensions": "output_dimension",
}
"""Fields of chat completions and embeddings as clients of this API write them."""


def renamed(error: BaseException) -> ApiError:
    e = translate(error)
    if isinstance(error, (RequestError, ApiError)) and e.param in NAMES:
        name = NAMES[e.param]
        return ApiError(e.message.replace(e.param, name, 1), name, e.status, e.retry_after)
    return e


def refused(error: BaseException) -> Response:
    e = renamed(error)
    answer = failure(e)
    answer.body = orjson.dumps({"message": e.message, "param": e.param})
    answer.headers["content-length"] = str(len(answer.body))
    return answer


def event(body: dict[str, Any]) -> bytes:
    kind: str = body["type"]
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"


class Events(EventStream):
    """A stream whose errors are of this form."""

    def refused(self, error: BaseException) -> Response:
        return refused(error)

    def broken(self, error: BaseException) -> bytes:
        return event({"type": "message-end", "delta": {"error": renamed(error).message, "finish_reason": "ERROR"}})
