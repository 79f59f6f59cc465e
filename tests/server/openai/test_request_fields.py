"""What becomes of fields of a request: unknown ones are ignored, named once and counted; what changes the answer is not."""

from __future__ import annotations

import logging

import pytest
from fake_engine import FakeEngine
from prometheus_client.parser import text_string_to_metric_families
from scripted import Scripted

from thalweg.server.core.fields import MOST_NAMES, RequestParser
from thalweg.server.core.request import ChatRequest
from thalweg.server.core.unsupported_fields import NOT_YET
from thalweg.server.openai.protocol import CompletionRequest, TokenizeText

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = {"role": "user", "content": "hi"}


TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("path", "fields", "headers", "seconds"),
    [
        (CHAT, {"messages": [HI]}, {}, None),
        (CHAT, {"messages": [HI], "tools": TOOLS}, {}, 300),
        (CHAT, {"messages": [HI], "tools": TOOLS, "tool_choice": "none"}, {}, None),
        (CHAT, {"messages": [HI], "tools": TOOLS, "cache_retention": 0}, {}, 0),
        (CHAT, {"messages": [HI]}, {"X-Session-Id": "s"}, 300),
        (TEXT, {"prompt": "hi", "session_id": "s"}, {}, 300),
        (TEXT, {"prompt": "hi", "prompt_cache_key": "k", "prompt_cache_retention": "24h"}, {}, 86400),
        ("/v1/responses", {"input": "hi", "prompt_cache_key": "k"}, {}, 300),
        ("/v1/responses", {"input": "hi", "prompt_cache_retention": "24h"}, {}, 86400),
    ],
)
def test_a_conversation_that_continues_keeps_its_blocks(start, path, fields, headers, seconds):
    """By its tools, the name of its session, or the time it asks for."""
    running = start(Scripted("hello"))
    r = running.post(path, fields, headers=headers)
    assert r.status_code == 200, r.text
    assert running.engine.params[-1].cache_retention == seconds


def counted(running) -> dict[str, float]:
    families = text_string_to_metric_families(running.get("/metrics").text)
    return {s.labels["field"]: s.value for f in families for s in f.samples if s.name == "thalweg:unknown_request_fields_total"}


CLIENTS = {
    "hints for routers": (
        {"messages": [HI], "session_id": "s", "nvext": {"agent_hints": {"priority": 3, "osl": 9}, "annotations": ["x"]}},
        {"nvext.agent_hints.osl", "nvext.annotations"},
    ),
    "ids of messages": ({"messages": [{**HI, "id": "msg_1"}, {**HI, "id": "msg_2"}]}, {"messages[].id"}),
    "cache marks": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}]},
        {"messages[].content[].cache_control"},
    ),
    "what gateways add": (
        {"messages": [HI], "provider": {"order": ["x"]}, "client_metadata": {}, "extra_body": {"a": [1]}},
        {"provider", "client_metadata", "extra_body"},
    ),
    "stream options": (
        {"messages": [HI], "stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"stream_options.include_obfuscation"},
    ),
    "tools not to be called": (
        {
            "messages": [HI],
            "tool_choice": "none",
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"x-y": 1}}, "defer_loading": True}],
        },
        {"tools[].defer_loading"},
    ),
    "labels": (
        {"messages": [HI], "store": True, "metadata": {"run": 7, "deep": {"a": [1]}}, "user": "u", "prompt_cache_key": "k"},
        set(),
    ),
    "a reply as history": (
        {"messages": [HI, {"role": "assistant", "content": "x", "annotations": [], "refusal": None}, HI]},
        set(),
    ),
    "no tools": ({"messages": [HI], "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, set()),
    "what asks for nothing": (
        {
            "messages": [HI],
            "response_format": {"type": "text"},
            "truncation_side": "left",
            "documents": None,
            "mirostat": 0,
            "suffix": "",
            "length_penalty": 1,
        },
        set(),
    ),
}


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.sampled(2)
def test_what_clients_send_is_answered_as_if_it_were_not_there(start, name):
    body, unknown = CLIENTS[name]
    running = start()
    r = running.post(CHAT, {**body, "max_tokens": 2})
    assert r.status_code == 200, r.text
    assert counted(running) == dict.fromkeys(unknown, 1)
    plain = running.post(CHAT, {"messages": [HI], "max_tokens": 2}).json()["choices"][0]["message"]["content"]
    if len(body["messages"]) == 1 and not body.get("stream"):
        assert r.json()["choices"][0]["message"]["content"] == plain


def test_an_unknown_field_is_logged_once_by_name_and_never_by_value(start, caplog):
    running = start()
    with caplog.at_level(logging.INFO, logger="thalweg.server"):
        for i in range(3):
            body = {"prompt": "a", "max_tokens": 1, "thread_id": f"secret-{i}", "evil\nname": 1, "x" * 65: 1}
            assert running.post(TEXT, body).status_code == 200
    said = [m for m in caplog.messages if "not known here" in m]
    assert len(said) == 1
    assert "thread_id" in said[0]
    assert "secret" not in caplog.text
    assert "evil" not in caplog.text
    assert counted(running) == {"thread_id": 3, "other": 3}


def test_clients_cannot_make_as_many_series_as_they_like(caplog):
    names = []
    fields = RequestParser(count=names.append)
    with caplog.at_level(logging.INFO, logger="thalweg.server"):
        for i in range(1000):
            fields.parse(CompletionRequest, {"prompt": "a", f"made_up_{i}": 1, f"again_{i}": 1})
    assert len(set(names)) == MOST_NAMES + 1
    assert "other" in names
    assert len(names) >= 1000
    assert len(caplog.messages) == MOST_NAMES + 1


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, {"prompt": "a", "thread_id": "s"}, "thread_id"),
        (CHAT, {"messages": [HI, {**HI, "id": "m"}]}, "messages[1].id"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "no": 1}]}]},
            "messages[0].content[0].no",
        ),
        (CHAT, {"messages": [HI], "stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ("/tokenize", {"prompt": "a", "x": 1}, "x"),
        ("/detokenize", {"tokens": [97], "x": 1}, "x"),
    ],
)
def test_a_strict_server_refuses_them_by_name(start, path, body, param):
    running = start(strict_requests=True)
    r = running.post(path, body)
    assert (r.status_code, r.json()["error"]["param"]) == (400, param)
    assert "strict-requests" in r.json()["error"]["message"]
    assert counted(running) == {}
    assert running.post(TEXT, {"prompt": "a", "max_tokens": 1, "user": "u", "suffix": None}).status_code == 200


@pytest.mark.parametrize("name", NOT_YET)
@pytest.mark.parametrize(("path", "base"), [(TEXT, {"prompt": "a"}), (CHAT, {"messages": [HI]})])
@pytest.mark.sampled(19)
def test_what_changes_the_answer_is_refused_unless_it_asks_for_nothing(server, name, path, base):
    for nothing in (None, *NOT_YET[name]):
        r = server.post(path, {**base, "max_tokens": 1, name: nothing})
        assert r.status_code == 200, r.text
    r = server.post(path, {**base, "max_tokens": 1, name: {"asks": "for something"}})
    assert (r.status_code, r.json()["error"]["param"]) == (400, name)
    assert name in r.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [HI], "logprobs": "true", "top_logprobs": "2", "max_tokens": "3"}),
        (CHAT, {"messages": [HI], "logprobs": 1, "top_logprobs": 2.0, "max_tokens": 3.0}),
        (TEXT, {"prompt": "a", "temperature": "0.5", "top_p": "1e-1", "n": "1", "max_tokens": 3, "logprobs": "2"}),
    ],
)
def test_numbers_and_switches_may_be_written_as_text(server, path, body):
    r = server.post(path, body)
    assert r.status_code == 200, r.text
    assert r.json()["usage"]["completion_tokens"] == 3
    assert r.json()["choices"][0]["logprobs"] is not None


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"max_tokens": "3.5"}, "max_tokens"),
        ({"max_tokens": "0x10"}, "max_tokens"),
        ({"max_tokens": "1_000"}, "max_tokens"),
        ({"max_tokens": "9" * 5000}, "max_tokens"),
        ({"max_tokens": "\u0663"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": "nan"}, "temperature"),
        ({"temperature": "inf"}, "temperature"),
        ({"echo": "yes please"}, "echo"),
        ({"echo": 2}, "echo"),
        ({"prompt": ["1", 2]}, "prompt"),
        ({"prompt": [1.0]}, "prompt"),
        ({"stop_token_ids": ["5"]}, "stop_token_ids[0]"),
    ],
)
def test_what_is_no_number_stays_none(server, change, param):
    r = server.post(TEXT, {"prompt": "a", **change})
    assert (r.status_code, r.json()["error"]["param"]) == (400, param), r.text


def test_what_the_template_sees_is_what_is_known(start):
    running = start(FakeEngine(template="{{ messages }}"), strict_requests=False)
    ids = running.post("/tokenize", {"messages": [{**HI, "id": "hidden"}]}).json()["tokens"]
    assert b"hidden" not in bytes(ids)


def test_parsing_leaves_models_alone():
    fields = RequestParser()
    assert fields.parse(TokenizeText, {"prompt": "a", "zzz": 1}).model_dump() == {
        "model": None,
        "prompt": "a",
        "add_special_tokens": True,
        "return_token_strs": False,
    }
    assert fields.parse(ChatRequest, {"messages": [{**HI, "zzz": 1}]}).messages[0].model_extra is None


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"stop": ["x"] * 5000}, "stop", "at most"),
        ({"stop": "x" * 70_000}, "stop", "characters"),
        ({"stop": ["a", "x" * 70_000]}, "stop[1]", "characters"),
        ({"stop": 5}, "stop", "a string or a list of strings"),
        ({"prompt": [-1]}, "prompt[0]", "greater than or equal to 0"),
        ({"prompt": [[5], [-1]]}, "prompt[1][0]", "greater than or equal to 0"),
        ({"prompt": [2**40]}, "prompt[0]", "less than"),
        ({"prompt": [1, "a"]}, "prompt", "a list of token ids"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_not_what_is_right(server, body, param, words):
    r = server.post(TEXT, {"prompt": "a", **body})
    error = r.json()["error"]
    assert (r.status_code, error["param"]) == (400, param), r.text
    assert words in error["message"]


def test_every_wrong_key_of_a_bias_is_named(server):
    message = server.post(TEXT, {"prompt": "a", "logit_bias": {"x": 1, "5": 1, "-1": 1}}).json()["error"]["message"]
    assert "'x'" in message
    assert "'-1'" in message
    assert "'5'" not in message
    message = server.post(TEXT, {"prompt": "a", "logit_bias": {"007": 1, "7": 2}}).json()["error"]["message"]
    assert "token 7 is given twice" in message


def test_a_budget_of_reasoning_reaches_the_engine(start):
    engine = Scripted("a", "b")
    running = start(engine)
    running.post(CHAT, {"messages": [HI], "thinking_token_budget": 64})
    running.post(TEXT, {"prompt": "hi", "thinking_token_budget": 0})
    assert [p.thinking_token_budget for p in engine.params] == [64, 0]
    answer = running.post(CHAT, {"messages": [HI], "thinking_token_budget": -1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "thinking_token_budget")
