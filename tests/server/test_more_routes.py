"""Routes of vLLM beside OpenAI's: rendering, tokens in and out, scoring, several conversations, one address for all."""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from scripted import CALLS, CHATML, Scripted

from thalweg.server.openai import invocations

CHAT: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "seed": 3}


def param(response: Any) -> str:
    assert response.status_code == 400, response.text
    return str(response.json()["error"]["param"])


def test_what_is_rendered_generates_the_same(start):
    running = start(FakeEngine())
    body = {**CHAT, "temperature": 0.5, "stop": "zz", "logit_bias": {"97": 1.5}, "request_id": "mine"}
    rendered = running.post("/v1/chat/completions/render", body).json()
    assert bytes(rendered["token_ids"]).decode() == "<user>hi\n<assistant>"
    assert (rendered["request_id"], rendered["stream"]) == ("mine", False)
    made = running.post("/inference/v1/generate", rendered).json()
    said = running.post("/v1/chat/completions", {**body, "return_token_ids": True}).json()
    assert made["request_id"] == "mine"
    assert made["choices"][0]["token_ids"] == said["choices"][0]["token_ids"]
    assert made["choices"][0]["finish_reason"] == said["choices"][0]["finish_reason"] == "length"
    assert made["usage"] == said["usage"]
    many = running.post("/v1/completions/render", {"prompt": [[97], [98, 99]], "max_tokens": 3}).json()
    assert [m["token_ids"] for m in many] == [[97], [98, 99]]
    assert len({m["request_id"] for m in many}) == 2
    assert many[0]["sampling_params"]["max_tokens"] == 3


def test_rendered_constraints_hold(start):
    running = start(FakeEngine(template=CHATML))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    rendered = running.post("/v1/chat/completions/render", {**CHAT, "response_format": form}).json()
    seen: list[Any] = []
    prepare = running.engine.prepare

    async def watched(params: Any) -> None:
        seen.append(params)
        await prepare(params)

    running.engine.prepare = watched
    running.post("/inference/v1/generate", rendered).raise_for_status()
    assert seen[0].structured_outputs.json == schema


def test_tokens_streamed(start):
    running = start(FakeEngine())
    body = {"token_ids": [97, 98], "sampling_params": {"max_tokens": 4, "seed": 1, "logprobs": 2, "n": 2}}
    whole = running.post("/inference/v1/generate", body).json()
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    frames = running.post("/inference/v1/generate", body).text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    events = [json.loads(f.removeprefix("data: ")) for f in frames[:-2]]
    assert events[-1]["usage"] == whole["usage"]
    assert len({e["request_id"] for e in events}) == 1
    for i in range(2):
        pieces = [c for e in events for c in e["choices"] if c["index"] == i]
        assert [t for c in pieces for t in c["token_ids"]] == whole["choices"][i]["token_ids"]
        tops = [t for c in pieces for t in c["logprobs"]["content"]]
        assert tops == whole["choices"][i]["logprobs"]["content"]
        assert pieces[-1]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [300]}, "token_ids"),
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"sampling_params": {"temperature": "hot"}}, "sampling_params.temperature"),
        ({"sampling_params": {"max_tokens": [1]}}, "sampling_params.max_tokens"),
        ({"sampling_params": {"typical_p": 0.5}}, "sampling_params.typical_p"),
        ({"sampling_params": {"structured_outputs": {"jsn": {}}}}, "sampling_params"),
        ({"sampling_params": {"stop": 5}}, "sampling_params.stop"),
        ({"sampling_params": {"logprobs": 50}}, "sampling_params.logprobs"),
        ({"sampling_params": {"extra_args": {"a": 1}}}, "sampling_params.extra_args"),
        ({"features": {"mm_hashes": {"image": ["x"]}}}, "features"),
    ],
)
def test_wrong_generations_name_the_field(server, fields, where):
    body = {"token_ids": [97], "sampling_params": {"max_tokens": 2, "typical_p": None}, **fields}
    assert param(server.post("/inference/v1/generate", body)) == where


def test_a_server_of_tokens_only_ends_requests_by_name(start):
    running = start(FakeEngine(delay=0.2), tokens_only=True)
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/files"):
        assert running.post(path, {}).status_code == 404
    body = {"token_ids": [97], "sampling_params": {"max_tokens": 10_000}, "request_id": "long"}
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(running.post("/inference/v1/generate", body).json()))
    thread.start()
    deadline = time.monotonic() + 60
    while not running.engine.running:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert running.post("/abort_requests", {"request_ids": ["other"]}).json() == {"aborted": 0}
    assert running.post("/abort_requests", {"request_ids": ["long"]}).json() == {"aborted": 1}
    thread.join(60)
    assert made[0]["choices"][0]["finish_reason"] == "abort"
    assert param(running.post("/abort_requests", {})) == "request_ids"


def test_a_key_ends_its_own_requests_alone(start):
    """Clients choose the names, so two keys may choose the same."""
    running = start(FakeEngine(delay=0.2), tokens_only=True, api_key=["a", "b"])
    body = {"token_ids": [97], "sampling_params": {"max_tokens": 10_000}, "request_id": "long"}
    made: dict[str, Any] = {}

    def ask(key: str) -> None:
        answer = httpx.post(f"{running.url}/inference/v1/generate", json=body, headers={"x-api-key": key}, timeout=60)
        made[key] = answer.json()["choices"][0]["finish_reason"]

    threads = [threading.Thread(target=ask, args=(key,)) for key in "ab"]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while len(running.engine.running) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for key, thread in zip("ab", threads, strict=True):
        answer = running.post("/abort_requests", {"request_ids": ["long"]}, headers={"x-api-key": key})
        assert answer.json() == {"aborted": 1}
        thread.join(60)
        assert made[key] == "abort"
        assert len(made) == "ab".index(key) + 1
    assert not running.app.serving.owners


def test_without_that_flag_nobody_ends_others_requests(server):
    assert server.post("/abort_requests", {"request_ids": ["x"]}).status_code == 404
    assert server.get("/server_info").status_code == server.get("/tokenizer_info").status_code == 404


def test_generative_scoring(start):
    running = start(FakeEngine())
    body = {"query": "Is it? ", "items": ["yes", "no"], "label_token_ids": [65, 66]}
    r = running.post("/generative_scoring", body).json()
    assert [(d["index"], d["object"]) for d in r["data"]] == [(0, "score"), (1, "score")]
    texts = [bytes(p["prompt_token_ids"]).decode() for p in running.engine.prompts]
    assert texts == ["Is it? yes", "Is it? no"] * 2
    assert r["usage"]["prompt_tokens"] == len("Is it? yesIs it? no")
    first = running.post("/generative_scoring", {**body, "item_first": True, "query": [63], "items": [[97], [98]]})
    assert first.status_code == 200
    assert [bytes(p["prompt_token_ids"]) for p in running.engine.prompts[-2:]] == [b"a?", b"b?"]
    for wrong, where in (
        ({"label_token_ids": []}, "label_token_ids"),
        ({"label_token_ids": [65, 65]}, "label_token_ids"),
        ({"label_token_ids": [999]}, "label_token_ids[0]"),
        ({"items": []}, "items"),
        ({"query": [999], "items": [[97]]}, "query"),
        ({"query": [97], "items": [[97], [999]]}, "items[1]"),
    ):
        assert param(running.post("/generative_scoring", {**body, **wrong})) == where


def test_scores_are_probabilities(start, monkeypatch):
    running = start(FakeEngine())
    values = {65: -1.0, 66: -3.0}

    async def tokens(ids: Any, p: Any, request_id: str, first: int) -> Any:
        (label,) = p.allowed_token_ids
        from thalweg.outputs import CompletionOutput, Logprob, RequestOutput

        choice = CompletionOutput(0, "", [label], logprobs=[{label: Logprob(values[label], 9, "x")}], finish_reason="length")
        yield RequestOutput(request_id, None, ids, None, [choice], True, num_cached_tokens=0)

    monkeypatch.setattr(running.engine, "_tokens", tokens)
    body = {"query": "q", "items": ["i"], "label_token_ids": [65, 66]}
    (normal,) = running.post("/generative_scoring", body).json()["data"]
    assert math.isclose(normal["score"], math.exp(-1) / (math.exp(-1) + math.exp(-3)))
    (raw,) = running.post("/generative_scoring", {**body, "apply_softmax": False}).json()["data"]
    assert math.isclose(raw["score"], math.exp(-1))


def test_several_conversations(start):
    running = start(FakeEngine())
    talks = [[{"role": "user", "content": c}] for c in ("hi", "you", "there")]
    r = running.post("/v1/chat/completions/batch", {**CHAT, "messages": talks}).json()
    alone = [running.post("/v1/chat/completions", {**CHAT, "messages": t}).json() for t in talks]
    assert [c["index"] for c in r["choices"]] == [0, 1, 2]
    assert [c["message"] for c in r["choices"]] == [a["choices"][0]["message"] for a in alone]
    assert r["usage"]["total_tokens"] == sum(a["usage"]["total_tokens"] for a in alone)
    for wrong, where in (
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"messages": CHAT["messages"]}, "messages"),
        ({"messages": []}, "messages"),
    ):
        assert param(running.post("/v1/chat/completions/batch", {**CHAT, "messages": talks, **wrong})) == where


def test_several_conversations_with_reasoning(start):
    running = start(Scripted(CALLS, CALLS))
    talks = [[{"role": "user", "content": c}] for c in ("a", "b")]
    r = running.post("/v1/chat/completions/batch", {"messages": talks}).json()
    assert [c["message"]["reasoning"] for c in r["choices"]] == ["Let me <see>."] * 2


def test_one_address_for_all(start):
    running = start(FakeEngine())
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "a", "max_tokens": 3})):
        mine, theirs = running.post("/invocations", body).json(), running.post(path, body).json()
        assert mine["choices"] == theirs["choices"]
    streamed = running.post("/invocations", {**CHAT, "stream": True}).text
    assert streamed.endswith("data: [DONE]\n\n")
    r = running.post("/invocations", {"input": "a"})
    assert r.status_code == 400
    assert "messages, prompt" in r.json()["error"]["message"]
    assert param(running.post("/invocations", {"messages": []})) == "messages"


def test_what_the_server_runs_with(start):
    running = start(FakeEngine(), server_dev_mode=True, enable_tokenizer_info_endpoint=True, api_key=["secret"])
    headers = {"Authorization": "Bearer secret"}
    text = running.get("/server_info", headers=headers)
    as_json = running.get("/server_info?config_format=json", headers=headers).json()
    assert text.json()["config"].startswith("EngineConfig(")
    assert as_json["config"]["model"]["max_len"] == 256
    assert as_json["server"]["server_dev_mode"] is True
    assert "secret" not in text.text
    assert running.get("/server_info?config_format=x", headers=headers).status_code == 400
    told = running.get("/tokenizer_info", headers=headers).json()
    assert told["tokenizer_class"] == "ByteTokenizer"
    assert told["chat_template"].startswith("{% for m in messages %}")


def test_the_first_servers_route_gives_whole_texts_after_the_prompt(start):
    running = start(FakeEngine())
    body = {"prompt": "ab", "max_tokens": 4, "n": 2, "temperature": 0.7, "seed": 3}
    said = running.post("/v1/completions", body).json()
    expected = ["ab" + c["text"] for c in said["choices"]]
    assert running.post("/generate", body).json() == {"text": expected}
    streamed = running.post("/generate", {**body, "stream": True})
    assert streamed.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line)["text"] for line in streamed.text.splitlines()]
    assert lines[-1] == expected
    assert all(
        new.startswith(old) for before, after in itertools.pairwise(lines) for old, new in zip(before, after, strict=True)
    )


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "a", "temperature": "hot"}, "temperature"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "use_beams": True}, "use_beams"),
        ({"prompt": "a", "sampling_params": {"max_tokens": 1}}, "sampling_params"),
        ({"prompt": "a" * 5000}, "prompt"),
        ({"prompt": "a", "stop": ["x"] * 100}, "stop"),
    ],
)
def test_the_first_servers_route_names_what_is_wrong(server, body, named):
    assert param(server.post("/generate", body)) == named
    assert param(server.post("/generate", {**body, "stream": True})) == named


def test_a_long_body_of_any_form_is_read_beside_the_event_loop(start, monkeypatch):
    threads, own = list[str](), invocations.load
    monkeypatch.setattr(invocations, "load", lambda *given: threads.append(threading.current_thread().name) or own(*given))
    running = start()
    for padding in ("", " " * 100_000):
        body = json.dumps({"prompt": "a", "max_tokens": 1}).encode() + padding.encode()
        answer = running.http.post("/invocations", content=body, headers={"Content-Type": "application/json"})
        assert answer.json()["object"] == "text_completion"
    assert [name == running._thread.name for name in threads] == [True, False]
