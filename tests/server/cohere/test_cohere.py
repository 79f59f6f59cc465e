"""Cohere's chat, version 2: whole, streamed and in a tool loop. The forms are those of its client 7.3.1, which ci/clients.py
runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_engine import ByteTokenizer, FakeEngine
from scripted import CALLS, Scripted

FUNCTION = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
ASK: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "weather?"}]}
ENDS = {
    "content-start": "content-end",
    "tool-call-start": "tool-call-end",
}


def events(running: Any, **fields: Any) -> list[dict[str, Any]]:
    text = running.post("/v2/chat", {**ASK, "stream": True, **fields}).text
    pairs = [f.split("\n") for f in text.split("\n\n") if f]
    bodies = [json.loads(b.removeprefix("data: ")) for _, b in pairs]
    assert [a.removeprefix("event: ") for a, _ in pairs] == [b["type"] for b in bodies]
    return bodies


def put_together(bodies: list[dict[str, Any]]) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    until = ""
    for e in bodies[1:-1]:
        kind = e["type"]
        if kind in ENDS:
            assert not until
            until = ENDS[kind]
            said = e["delta"]["message"]
            (content if kind == "content-start" else calls).append(said.get("content") or said.get("tool_calls"))
        elif kind == until:
            until = ""
        elif kind == "content-delta":
            for name, text in e["delta"]["message"]["content"].items():
                content[-1][name] += text
        else:
            calls[-1]["function"]["arguments"] += e["delta"]["message"]["tool_calls"]["function"]["arguments"]
        assert e["index"] == (len(content) if "content" in kind else len(calls)) - 1
    assert not until
    return {"role": "assistant", "content": content, "tool_calls": calls}


def shape(message: dict[str, Any]) -> Any:
    return message["content"], [c["function"] for c in message["tool_calls"]]


def test_whole_and_streamed_are_the_same(start):
    running = start(Scripted(CALLS, CALLS))
    r = running.post("/cohere/v2/chat", {**ASK, "tools": TOOLS}).json()
    content, calls = shape(r["message"])
    assert content == [{"type": "thinking", "thinking": "Let me <see>."}, {"type": "text", "text": "One moment."}]
    assert calls == [
        {"name": "get_weather", "arguments": '{"city":"Par\\u00eds"}'},
        {"name": "get_time", "arguments": "{}"},
    ]
    assert r["finish_reason"] == "TOOL_CALL"
    assert r["usage"]["tokens"]["output_tokens"] == len(CALLS)
    found = events(running, tools=TOOLS)
    assert (found[0]["type"], found[-1]["type"]) == ("message-start", "message-end")
    assert shape(put_together(found)) == (content, calls)
    assert found[-1]["delta"]["usage"] == r["usage"]
    assert found[-1]["delta"]["finish_reason"] == "TOOL_CALL"


def test_a_tool_loop(start):
    running = start(Scripted(CALLS, "It is 20 degrees."))
    first = running.post("/v2/chat", {**ASK, "tools": TOOLS}).json()["message"]
    results = [
        {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": [
            {"type": "document", "document": {"data": {"degrees": 20}}}, {"type": "text", "text": "ok"},
        ]},
    ]  # fmt: skip
    history = [*ASK["messages"], {**first, "tool_plan": "unused"}, *results]
    r = running.post("/v2/chat", {**ASK, "messages": history, "tools": TOOLS}).json()
    assert (r["message"]["content"][0]["text"], r["finish_reason"]) == ("It is 20 degrees.", "COMPLETE")
    prompt = running.engine.prompts[1]["prompt"]
    assert "<assistant>Let me <see>.One moment." in prompt
    assert '<tool>{"data":{"degrees":20}}\nok' in prompt


def test_parameters_arrive(start):
    running = start(Scripted("a", "b", "c", reason="length"))
    body = {**ASK, "max_tokens": 7, "k": 5, "p": 0.5, "seed": 3, "stop_sequences": ["x"], "temperature": 0.5}
    r = running.post("/v2/chat", {**body, "response_format": {"type": "json_object", "json_schema": {"type": "object"}}}).json()
    assert r["finish_reason"] == "MAX_TOKENS"
    p = running.engine.params[0]
    assert (p.max_tokens, p.top_k, p.top_p, p.seed, p.stop, p.temperature) == (7, 5, 0.5, 3, ["x"], 0.5)
    assert p.structured_outputs.json == {"type": "object"}
    running.post("/v2/chat", {**ASK, "tools": TOOLS, "tool_choice": "REQUIRED"})
    assert "get_weather" in running.engine.params[1].structured_outputs.grammar


def test_strict_tools_are_held_to_their_schemas(start):
    engine = Scripted("So.", "So.")
    engine.tokenizer = ByteTokenizer()
    engine.tokenizer.added_tokens = {9: "<tool_call>"}
    running = start(engine)
    assert running.post("/v2/chat", {**ASK, "tools": TOOLS, "strict_tools": True}).status_code == 200
    assert running.post("/v2/chat", {**ASK, "tools": TOOLS}).status_code == 200
    held, free = (p.structured_outputs for p in engine.params)
    assert (held.free_until, held.grammar.count('"city"')) == ([9], 1)
    assert held.parts[0].field == "tools[0].function.parameters"
    assert free is None


def test_strict_tools_are_held_to_their_schemas_where_content_has_a_form_too(start):
    engine = Scripted("So.", "So.")
    engine.tokenizer = ByteTokenizer()
    engine.tokenizer.added_tokens = {9: "<tool_call>"}
    running, form = start(engine), {"type": "json_object", "json_schema": {"type": "object", "required": ["degrees"]}}
    for strict in (True, False):
        assert (
            running.post("/v2/chat", {**ASK, "tools": TOOLS, "strict_tools": strict, "response_format": form}).status_code
            == 200
        )
    held, free = (p.structured_outputs for p in engine.params)
    assert [s.inner.json for s in (held, free)] == [form["json_schema"]] * 2
    assert [s.grammar.count('"city"') for s in (held, free)] == [1, 0]


@pytest.mark.parametrize("key", ["json_schema", "schema"])
def test_a_schema_is_read_in_both_spellings(start, key):
    """`schema` is that of version 1 of the API."""
    running, schema = start(Scripted("{}")), {"type": "object", "required": ["degrees"]}
    r = running.post("/v2/chat", {**ASK, "response_format": {"type": "json_object", key: schema}})
    assert (r.status_code, r.headers.get("x-ignored-fields")) == (200, None)
    assert running.engine.params[0].structured_outputs.json == schema


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "json_object", "schema": {}, "json_schema": {}}, "response_format.json_schema"),
        ({"type": "json_object", "schema": "x"}, "response_format.schema"),
        ({"type": "json_object", "json_schema": "x"}, "response_format.json_schema"),
        ({"type": "text", "schema": {"type": "object"}}, "response_format.schema"),
        ({"type": "text", "json_schema": {"type": "object"}}, "response_format.json_schema"),
    ],
)
def test_a_schema_that_cannot_hold_is_refused_by_name(server, form, param):
    r = server.post("/v2/chat", {**ASK, "response_format": form})
    assert (r.status_code, r.json()["param"]) == (400, param)
    assert param in r.json()["message"] or "only one of" in r.json()["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": ["x"]}, "documents"),
        ({"logprobs": True}, "logprobs"),
        ({"p": 2}, "p"),
        ({"tool_choice": "REQUIRED"}, "tool_choice"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content[0]"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_refusals_have_a_message_and_name_the_field(server, fields, param):
    r = server.post("/v2/chat", {**ASK, **fields})
    assert r.status_code == 400
    assert (r.json()["param"], bool(r.json()["message"])) == (param, True)


def test_errors_in_a_stream(start):
    found = events(start(FakeEngine()), messages=[{"role": "user", "content": "!fail"}])
    assert (found[-1]["type"], found[-1]["delta"]["finish_reason"]) == ("message-end", "ERROR")
