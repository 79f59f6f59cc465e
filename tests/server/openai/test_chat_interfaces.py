"""What Open WebUI and LibreChat send, by their public sources, and what they read of the answers.

Open WebUI: backend/open_webui/routers (openai, tasks, audio) and utils/middleware. Its own fields (metadata, features) come
where a browser talks to a server directly. LibreChat: packages/api/src/endpoints/openai, through LangChain's client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_engine import FakeEngine
from scripted import CALLS, Scripted

CHAT = "/v1/chat/completions"
WEBUI = {"Authorization": "Bearer sk-local", "Content-Type": "application/json", "Origin": "http://localhost:3000"}
WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Name"}}, "required": ["city"]},
}
TIME = {"name": "get_time", "description": "", "parameters": {"type": "object", "properties": {}, "required": []}}
TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", "function": TIME}]
SAID = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Paris, and the time?"}]


def events(text: str) -> list[dict[str, Any]]:
    lines = [p for p in text.split("\n\n") if p]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(p.removeprefix("data: ")) for p in lines[:-1]]


def joined(chunks: list[dict[str, Any]], key: str) -> str:
    return "".join(c["delta"].get(key) or "" for e in chunks for c in e["choices"])


@pytest.mark.parametrize("query", ["", "?user=65f0c0ffee"])
def test_the_models_are_listed(start, query):
    """LibreChat may add the user to the query."""
    found = start().get(f"/v1/models{query}", headers=WEBUI).json()
    assert found["object"] == "list"
    assert [(m["id"], m["object"]) for m in found["data"]] == [("fake", "model"), ("alias", "model")]


@pytest.mark.parametrize(
    ("content", "more"),
    [
        ("### Task:\nGenerate a concise title.\n### Output:\nJSON", {"max_completion_tokens": 1000}),  # title
        ("### Task:\nGenerate 1-3 broad tags.", {}),
        ("### Task:\nSuggest 3-5 follow-up questions.", {}),
        ("### Task:\nAnalyze the chat history to generate search queries.", {}),
        ("### Task:\nYou are an autocompletion system.", {"max_completion_tokens": 1000}),
    ],
)
def test_tasks_beside_a_chat_are_answered(start, content, more):
    engine = Scripted('{"title": "Weather"}')
    metadata = {"task": "title_generation", "task_body": {"messages": SAID}, "chat_id": None, "user_id": "u"}
    body = {"model": "fake", "messages": [{"role": "user", "content": content}], "stream": False, "metadata": metadata, **more}
    answer = start(engine).post(CHAT, body, headers=WEBUI)
    assert answer.json()["choices"][0]["message"]["content"] == '{"title": "Weather"}'
    assert engine.params[0].max_tokens == more.get("max_completion_tokens")


def test_a_turn_of_open_webui_streams_with_its_usage_and_goes_on_after_a_tool(start):
    engine = Scripted(CALLS, "It is <b>20</b> degrees.")
    running = start(engine, allowed_origins=["http://localhost:3000"])
    asked = running.http.options(
        CHAT, headers={**WEBUI, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    )
    assert asked.status_code == 200
    body = {
        "stream": True, "model": "fake", "messages": SAID, "stream_options": {"include_usage": True}, "tools": TOOLS,
        "params": {}, "files": [], "features": {"web_search": False, "image_generation": False}, "variables": {"{{USER}}": "A"},
        "session_id": "s", "chat_id": "c", "id": "m", "background_tasks": {"title_generation": True}, "tool_ids": [],
        "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
        "seed": 7, "stop": ["###"], "logit_bias": {"5": -100}, "reasoning_effort": "medium",
        "max_tokens": 500,
    }  # fmt: skip
    answer = running.post(CHAT, body, headers=WEBUI)
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
    chunks = events(answer.text)
    assert chunks[-1]["usage"]["total_tokens"] == sum(chunks[-1]["usage"][f"{k}_tokens"] for k in ("prompt", "completion"))
    assert joined(chunks, "reasoning_content") == "Let me <see>."
    calls: dict[int, dict[str, Any]] = {}  # put together as Open WebUI does: by index, the arguments appended
    for call in (c for e in chunks for choice in e["choices"] for c in choice["delta"].get("tool_calls", ())):
        if call["index"] not in calls:
            calls[call["index"]] = json.loads(json.dumps(call))
        else:
            calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    assert [c["function"]["name"] for c in calls.values()] == ["get_weather", "get_time"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "París"}
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "20 degrees"} for c in calls.values()]
    spoken = {"role": "assistant", "content": "One moment.", "tool_calls": list(calls.values())}
    chunks = events(running.post(CHAT, {**body, "messages": [*SAID, spoken, *results]}, headers=WEBUI).text)
    assert joined(chunks, "content") == "It is <b>20</b> degrees."
    assert "20 degrees" in engine.prompts[-1]["prompt"]
    assert [c["finish_reason"] for e in chunks for c in e["choices"]][-1] == "stop"


def test_a_turn_of_librechat_streams_and_its_title_is_asked_for_by_a_function(start):
    title = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    engine = Scripted("Hello.", title, "Weather in Paris")
    running = start(engine)
    headers = {"Authorization": "Bearer user_provided", "X-Stainless-Lang": "js", "X-Stainless-Runtime": "node"}
    body = {
        "model": "fake", "temperature": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "stream": True,
        "stream_options": {"include_usage": True}, "user": "65f0c0ffee", "reasoning": {"effort": "high", "summary": "auto"},
        "include_reasoning": True, "parallel_tool_calls": True, "tools": TOOLS, "tool_choice": "auto",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    }  # fmt: skip
    chunks = events(running.post(CHAT, body, headers=headers).text)
    assert joined(chunks, "content") == "Hello."
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    named = {"type": "function", "function": {"name": "get_weather"}}
    whole = {k: v for k, v in body.items() if k not in ("stream_options", "parallel_tool_calls")}
    told = running.post(CHAT, {**whole, "stream": False, "tools": TOOLS[:1], "tool_choice": named}, headers=headers).json()
    (call,) = told["choices"][0]["message"]["tool_calls"]
    assert (call["type"], json.loads(call["function"]["arguments"])) == ("function", {"city": "Paris"})
    assert engine.params[-1].structured_outputs is not None
    plain = {**whole, "stream": False, "tools": [], "tool_choice": None}
    assert running.post(CHAT, plain, headers=headers).json()["choices"][0]["message"]["content"] == "Weather in Paris"


def test_what_a_model_cannot_read_is_refused_in_words_that_can_be_shown(start):
    """An image, a sound, a file: a model of text alone says so, and names the place."""
    running = start(FakeEngine())
    for part in (
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "auto"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
    ):
        said = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, part]}]
        answer = running.post(CHAT, {"model": "fake", "messages": said, "stream": True}, headers=WEBUI)
        assert (answer.status_code, answer.json()["error"]["param"].startswith("messages")) == (400, True), part
        assert len(answer.json()["error"]["message"]) > 30


def test_what_is_not_served_has_an_answer_too(start):
    """Speech and pictures are other servers' business; embeddings of a model that generates are refused by what it can do."""
    running = start()
    for path, body in (
        ("/v1/audio/speech", {"model": "tts-1", "input": "Hi", "voice": "alloy"}),
        ("/v1/images/generations", {"model": "dall-e-3", "prompt": "a cat", "n": 1, "size": "512x512"}),
        ("/v1/embeddings", {"model": "fake", "input": ["a", "b"]}),
        ("/v1/rerank", {"model": "fake", "query": "a", "documents": ["b"], "top_n": 1}),
    ):
        answer = running.post(path, body, headers=WEBUI)
        assert answer.status_code in (400, 404), path
        assert answer.json()["error"]["message"]
