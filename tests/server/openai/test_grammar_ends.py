"""A generation that its grammar ends is an error of the request, by its own field. Other failures stay the server's."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from scripted import Scripted

from thalweg.outputs import CompletionOutput, RequestOutput
from thalweg.params import SamplingParams

COMPLEX = "structured_outputs: is too complex: one token needs more than 100000 steps"


class Ending(Scripted):
    """Ends every generation in this error after two letters."""

    def __init__(self, error: str) -> None:
        super().__init__("hi")
        self.error = error

    async def _tokens(self, ids: Any, p: SamplingParams, request_id: str, first: int) -> AsyncGenerator[RequestOutput, None]:
        for finished in (False, True):
            news = [CompletionOutput(0, "h", [104], finish_reason="error" if finished else None)]
            yield RequestOutput(request_id, None, ids, None, news, finished, error=self.error if finished else None)


SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
ASKED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"response_format": SCHEMA}, "response_format.json_schema.schema"),
    ("/v1/chat/completions", {"response_format": {"type": "json_object"}}, "response_format"),
    ("/v1/chat/completions", {"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
    ("/v1/chat/completions", {"structured_outputs": {"choice": ["a"]}}, "structured_outputs.choice"),
    ("/v1/chat/completions", {"guided_grammar": 'root ::= "a"'}, "guided_grammar"),
    ("/v1/completions", {"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
]


def send(running: Any, path: str, fields: dict[str, Any]) -> Any:
    said = {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    return running.post(path, {"model": "fake", **said, **fields})


@pytest.mark.parametrize(("path", "fields", "param"), ASKED)
@pytest.mark.sampled(2)
def test_a_grammar_that_became_too_complex_is_a_400_by_its_field(start, path, fields, param) -> None:
    reply = send(start(Ending(COMPLEX)), path, fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, 400, param)
    assert error["message"] == f"{param}: is too complex: one token needs more than 100000 steps"


def test_a_stream_ends_in_the_same_error(start) -> None:
    reply = send(start(Ending(COMPLEX)), "/v1/chat/completions", {"response_format": SCHEMA, "stream": True})
    assert '"code":400' in reply.text
    assert '"param":"response_format.json_schema.schema"' in reply.text


def test_responses_and_messages_say_so_too(start) -> None:
    running = start(Ending(COMPLEX))
    text = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}
    reply = running.post("/v1/responses", {"model": "fake", "input": "a", "text": text})
    assert reply.status_code == 400, reply.text
    output = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    asked = {"model": "fake", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}], "output_config": output}
    reply = running.post("/v1/messages", asked)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("error", ["the engine's own fault: a token outside the grammar", "logits are not numbers"])
def test_a_failure_of_the_engine_stays_a_500(start, error) -> None:
    assert send(start(Ending(error)), "/v1/chat/completions", {"response_format": SCHEMA}).status_code == 500


def test_without_a_grammar_of_the_client_no_words_make_a_400(start) -> None:
    assert send(start(Ending(COMPLEX)), "/v1/chat/completions", {}).status_code == 500
