"""Errors in this API's form. A stream that has begun ends with response.failed (`run`)."""

from __future__ import annotations

from thalweg.server.errors import ApiError, ErrorForm, type_of
from thalweg.server.http.answer import typed_event

CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded", 500: "server_error"}
NAMES = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "response_format": "text.format",
    "response_format.json_schema": "text.format.json_schema",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format.schema": "text.format.schema",
}
"""Fields of chat completions as clients of this API write them."""


def describe_error(error: ApiError) -> dict[str, str]:
    """`error` as a response has it."""
    return {"code": type_of(CODES, error.status), "message": error.message}


def _frame(error: ApiError) -> bytes:
    return typed_event({"type": "error", "sequence_number": 0, **describe_error(error), "param": error.param})


def _reword(error: ApiError) -> ApiError | None:
    """Items are not messages, one for one."""
    if error.param is None or not error.param.startswith("messages["):
        return None
    return ApiError(error.message.replace(error.param, "input: an image", 1), "input", error.status, error.retry_after)


ERRORS = ErrorForm(ApiError.body, _frame, NAMES, _reword)
