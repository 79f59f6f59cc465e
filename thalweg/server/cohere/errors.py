"""Errors in this API's form: a message, and here the field too."""

from __future__ import annotations

from thalweg.server.errors import ErrorForm
from thalweg.server.http.answer import typed_event

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
ERRORS = ErrorForm(
    lambda error: {"message": error.message, "param": error.param},
    lambda error: typed_event({"type": "message-end", "delta": {"error": error.message, "finish_reason": "ERROR"}}),
    NAMES,
)
