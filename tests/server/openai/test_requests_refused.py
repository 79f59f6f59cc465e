"""Bad requests get an OpenAI-shaped 4xx that names the field, and the server goes on."""

from __future__ import annotations

import httpx
import openai
import pytest
from fake_engine import FakeEngine
from pydantic import ValidationError

from thalweg.server.audio.speech_protocol import SpeechRequest
from thalweg.server.errors import translate
from thalweg.server.openai.protocol import CompletionRequest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def refused(response: httpx.Response, status: int, param: str | None) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert error["param"] == param
    assert error["message"]
    assert "/" + "home" not in error["message"]
    assert "Traceback" not in response.text
    return error["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": 10**9}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 2**70}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": ["x"] * 1000}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "x"}}, "logit_bias.1"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"007": 1, "7": 2}}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"prompt_logprobs": -2}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "maybe"}}, "stream_options.include_usage"),
        ({"stream": "yes"}, "stream"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 10**6}, "truncate_prompt_tokens"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"priority": 1}, "priority"),
        ({"request_id": "a b"}, "request_id"),
        ({"truncation_side": "right"}, "truncation_side"),
        ({"grammar": "root ::= [0-9]+"}, "grammar"),
        ({"min_characters": 5}, "min_characters"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format.json_schema.schema"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "("}, "stream": True}, "structured_outputs.regex"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_decoding_backend": "mine"}, "guided_decoding_backend"),
        ({"logits_processors": ["x"]}, "logits_processors"),
        ({"kv_transfer_params": {"do_remote_decode": 1}}, "kv_transfer_params"),
        ({"repetition_detection": {"max_pattern_size": 3}}, "repetition_detection"),
        ({"nvext": 5}, "nvext"),
    ],
)
@pytest.mark.parametrize(("path", "base"), [(TEXT, {"prompt": "a"}), (CHAT, {"messages": MESSAGES})])
def test_bad_field_is_named(server, path, base, change, param):
    message = refused(server.post(path, {**base, **change}), 400, param)
    assert "instance of" not in message
    assert next(iter(change)).split(".")[0] in message or param.split("[")[0].split(".")[0] in message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "x" * 300}, "prompt"),
        ({"prompt": ["a"] * 5000}, "prompt"),
        ({"prompt": ["a"] * 4000, "n": 100}, "n"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": -2}, "logprobs"),
        ({"prompt": "a", "prompt_embeds": "AAAA"}, "prompt_embeds"),
    ],
)
def test_bad_completion_prompt(server, body, param):
    refused(server.post(TEXT, body), 400, param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [*MESSAGES, {"role": "user", "content": 5}]}, "messages[1].content"),
        ({"messages": [{"role": "system", "content": "x", "tools": [{}]}]}, "messages[0].tools"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5}}]}]},
            "messages[0].content[0].image_url.url",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"messages": MESSAGES, "tool_choice": "required"}, "tool_choice"),
        ({"messages": MESSAGES, "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice"),
        ({"messages": MESSAGES, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"messages": MESSAGES, "functions": [{"name": "f"}]}, "functions"),
        ({"messages": MESSAGES, "modalities": ["audio"]}, "modalities"),
        ({"messages": MESSAGES, "top_logprobs": 3}, "top_logprobs"),
        ({"messages": MESSAGES, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": MESSAGES, "logprobs": True, "top_logprobs": -2}, "top_logprobs"),
        ({"messages": MESSAGES, "logprobs": 3}, "logprobs"),
        ({"messages": MESSAGES, "continue_final_message": True}, "continue_final_message"),
        ({"messages": MESSAGES, "chat_template": "x"}, "chat_template"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": MESSAGES, "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "messages"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ],
)
def test_bad_chat(server, body, param):
    refused(server.post(CHAT, body), 400, param)


def test_errors_before_the_first_token_are_not_streams(server):
    refused(server.post(TEXT, {"prompt": "x" * 300, "stream": True}), 400, "prompt")
    with pytest.raises(openai.BadRequestError, match="context"):
        server.client().completions.create(model="fake", prompt="x" * 300, stream=True)
    body = {"messages": MESSAGES, "stream": True, "logprobs": True, "top_logprobs": 21}
    refused(server.post(CHAT, body), 400, "top_logprobs")


@pytest.mark.parametrize("path", [TEXT, CHAT, "/tokenize", "/detokenize"])
def test_bad_bodies(server, path):
    post = lambda data, kind="application/json": server.post(path, content=data, headers={"content-type": kind})  # noqa: E731
    for data in (b"", b"{", b"[1]", b'"x"', b"nul", b'{"prompt": "\\ud800"}', b"\xff", b"[" * 5000):
        refused(post(data), 400, None)
    refused(post(b"{}", "text/plain"), 415, None)


def test_body_limit(start):
    running = start(max_body=1000)
    refused(running.post(TEXT, {"prompt": "x" * 2000}), 413, None)

    def chunks():
        for _ in range(20):
            yield b"x" * 100

    r = httpx.post(running.url + TEXT, content=chunks(), headers={"content-type": "application/json"})
    refused(r, 413, None)
    assert running.post(TEXT, {"prompt": "a"}).status_code == 200


@pytest.mark.parametrize("body", [{"prompt": "a", "model": "gpt"}, {"messages": MESSAGES, "model": "gpt"}])
def test_unknown_model_names_the_served_ones(server, body):
    message = refused(server.post(CHAT if "messages" in body else TEXT, body), 404, "model")
    assert "fake" in message
    assert "alias" in message


def test_unknown_route_and_method(server):
    refused(server.get("/v1/nope"), 404, None)
    refused(server.get(CHAT), 405, None)


def test_harmless_labels_are_accepted(server):
    labels = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "safety_identifier": "s"}
    neutral = {"response_format": {"type": "text"}, "use_beam_search": False, "length_penalty": 1.0, "suffix": None}
    assert server.post(TEXT, {"prompt": "a", "best_of": 1, **labels, **neutral}).status_code == 200
    chat = {"messages": MESSAGES, "tool_choice": "none", "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert server.post(CHAT, {**chat, **labels, "max_tokens": 1}).status_code == 200


def test_a_failing_request_leaves_the_others_alone(server):
    good = {"prompt": "abc", "max_tokens": 5}
    before = server.post(TEXT, good).json()["choices"]
    message = refused(server.post(TEXT, {"prompt": "!fail", "max_tokens": 5}), 500, None)
    assert message == "it broke"
    assert refused(server.post(TEXT, {"prompt": ["abc", "!fail"], "max_tokens": 5}), 500, None) == "it broke"
    assert server.post(TEXT, good).json()["choices"] == before
    assert not server.engine.running


def test_an_error_in_a_stream_is_an_error_event(server):
    stream = server.client().completions.create(model="fake", prompt="!fail", max_tokens=5, stream=True)
    pieces = []
    with pytest.raises(openai.APIError, match="it broke"):
        pieces.extend(chunk.choices[0].text for chunk in stream)
    assert len(pieces) == 2


def test_a_dead_engine_is_told_without_detail(start):
    running = start()
    message = refused(running.post(TEXT, {"prompt": "!dead"}), 500, None)
    assert "secret" not in message
    refused(running.post(TEXT, {"prompt": "a"}), 500, None)
    assert running.get("/health").status_code == 503
    assert running.get("/ping").status_code == 503


def test_an_unexpected_failure_is_told_without_detail(start):
    running = start()

    def broken(*args, **kwargs):
        raise ZeroDivisionError("secret detail")

    running.engine.generate = broken
    for stream in (False, True):
        message = refused(running.post(TEXT, {"prompt": "a", "stream": stream}), 500, None)
        assert "secret" not in message


def test_without_a_template_chat_says_what_to_do(start):
    running = start(FakeEngine(template=None))
    assert "--chat-template" in refused(running.post(CHAT, {"messages": MESSAGES}), 400, "messages")


def test_a_template_that_refuses_speaks_for_itself(start):
    running = start(FakeEngine(template="{{ raise_exception('roles must alternate') }}"))
    assert "roles must alternate" in refused(running.post(CHAT, {"messages": MESSAGES}), 400, "messages")


def test_without_a_tokenizer_only_ids_are_served(start):
    engine = FakeEngine()
    engine.tokenizer = None
    running = start(engine)
    refused(running.post(TEXT, {"prompt": "a"}), 400, "prompt")
    r = running.post(TEXT, {"prompt": [97], "max_tokens": 2, "return_token_ids": True})
    assert len(r.json()["choices"][0]["token_ids"]) == 2


def test_detokenize_checks_ids(server):
    refused(server.post("/detokenize", {"tokens": [1, 9999]}), 400, "tokens[1]")
    refused(server.post("/detokenize", {"tokens": [-1]}), 400, "tokens[0]")
    refused(server.post("/tokenize", {"prompt": 5}), 400, "prompt")


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_stop_strings_that_would_take_gigabytes_are_refused_with_their_budget(server, path):
    """64 strings of 65,536 characters: each is allowed, together they are an automaton of four million states."""
    body = {"stop": [chr(97 + i % 26) + "x" * 65_534 + chr(48 + i) for i in range(64)], "prompt": "a", "messages": MESSAGES}
    del body["messages" if path == TEXT else "prompt"]
    said = refused(server.post(path, body), 400, "stop")
    assert said == "stop: 4194304 characters together; the limit is 4096; send fewer or shorter ones"


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        (CompletionRequest, {"prompt": "a", "decoder_prompt": 3}, "decoder_prompt: must be a string or a list of token ids"),
        (
            CompletionRequest,
            {"prompt": "a", "decoder_prompt": [["b"]]},
            "decoder_prompt: must be a string or a list of token ids",
        ),
        (SpeechRequest, {"input": "a", "voice": 3}, "voice: must be a name, or an object with the name as id"),
    ],
)
def test_a_field_with_several_forms_names_them(kind, body, words):
    with pytest.raises(ValidationError) as e:
        kind.model_validate(body)
    assert translate(e.value).message == words
