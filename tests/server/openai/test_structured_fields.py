"""Every way in which a client may say what the text must be comes to the engine as the same parameters."""

from __future__ import annotations

from typing import Any

import pytest

from thalweg.server.core.request import ChatRequest
from thalweg.server.core.sampling import chat_params
from thalweg.server.errors import ApiError
from thalweg.server.openai.protocol import CompletionRequest
from thalweg.server.openai.sampling import completion_params

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}


@pytest.mark.parametrize(
    ("body", "kind", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", True),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
            "json",
            SCHEMA,
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, "json", SCHEMA),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json", SCHEMA),
        ({"response_format": {"type": "json_object", "schema": None, "json_schema": None}}, "json_object", True),
        ({"response_format": TAG}, "structural_tag", TAG),
        ({"structured_outputs": {"json": SCHEMA}}, "json", SCHEMA),
        ({"structured_outputs": {"json": "{}"}}, "json", "{}"),
        ({"structured_outputs": {"regex": "a", "choice": None, "disable_fallback": True}}, "regex", "a"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", ["a", "b"]),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "grammar", "root ::= x"),
        ({"structured_outputs": {"json_object": True}}, "json_object", True),
        ({"guided_json": SCHEMA}, "json", SCHEMA),
        ({"guided_json": "{}"}, "json", "{}"),
        ({"guided_regex": "a"}, "regex", "a"),
        ({"guided_choice": ["a"]}, "choice", ["a"]),
        ({"guided_grammar": "x", "guided_decoding_backend": "xgrammar"}, "grammar", "x"),
    ],
)
def test_all_ways_lead_to_one_constraint(body: dict[str, Any], kind: str, value: Any) -> None:
    chat_body = {"messages": [{"role": "user", "content": "a"}], **body}
    ChatRequest.refuse(chat_body)
    chat = chat_params(ChatRequest.model_validate(chat_body), {})
    text = completion_params(
        CompletionRequest.model_validate({"prompt": "a", **{k: chat_body[k] for k in chat_body if k in body}}), {}, True
    )
    for params in (chat, text):
        assert params.structured_outputs is not None
        assert params.structured_outputs.constraint == (kind, value)


def test_text_and_nothing_constrain_nothing() -> None:
    for more in ({}, {"response_format": {"type": "text"}}, {"response_format": None, "structured_outputs": None}):
        request = CompletionRequest.model_validate({"prompt": "a", **more})
        assert completion_params(request, {}, True).structured_outputs is None


def test_the_order_of_properties_and_the_options_are_kept() -> None:
    body = {"prompt": "a", "structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True, "whitespace_pattern": " ?"}}
    asked = completion_params(CompletionRequest.model_validate(body), {}, True).structured_outputs
    assert asked is not None
    assert list(asked.constraint[1]["properties"]) == ["b", "a"]
    assert (asked.disable_any_whitespace, asked.whitespace_pattern) == (True, " ?")


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"type": "json_object", "schema": "x"}, "response_format.schema"),
        ({"type": "json_object", "json_schema": {"schema": SCHEMA}}, "response_format.json_schema"),
    ],
)
def test_a_schema_that_would_be_ignored_is_refused_by_name(form: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError, match=field) as e:
        completion_params(CompletionRequest.model_validate({"prompt": "a", "response_format": form}), {}, True)
    assert e.value.param == field
