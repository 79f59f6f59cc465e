"""Errors in this API's form, as an answer and in the middle of a stream."""

from __future__ import annotations

from typing import Any

from thalweg.server.errors import ApiError, ErrorForm, type_of
from thalweg.server.http.answer import typed_event

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
NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
"""Fields of chat completions as clients of this API write them."""


def body_of(error: ApiError) -> dict[str, Any]:
    return {
        "type": "error",
        "error": {"type": type_of(TYPES, error.status), "message": error.message, "param": error.param},
    }


def _reword(error: ApiError) -> ApiError | None:
    """The error for a too long prompt, in the words that make clients shorten it."""
    if error.param != "prompt":
        return None
    words = f"prompt is too long: {error.message.removeprefix('prompt: ')}"
    return ApiError(words, "messages", error.status, error.retry_after)


ERRORS = ErrorForm(body_of, lambda error: typed_event(body_of(error)), NAMES, _reword)
