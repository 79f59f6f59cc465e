"""Answers have the field's shape: what is null and what is there, streamed as whole."""

from __future__ import annotations

import json

import httpx
import pytest
from fake_engine import FakeEngine

from thalweg.outputs import CompletionOutput

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


def chunks(response: httpx.Response) -> list[dict]:
    return [json.loads(e[6:]) for e in response.text.split("\n\n") if e.startswith("data: {")]


class Holding(FakeEngine):
    """Text comes late, as behind a stop string that might begin or half a character; its tokens do not."""

    def __init__(self, held: int) -> None:
        super().__init__()
        self._held, self._kept = held, ""

    def _output(self, i, p, tokens, text, before, end, whole=False):
        made: CompletionOutput = super()._output(i, p, tokens, text, before, end, whole)
        if not whole:
            self._kept += made.text
            ready = "" if len(tokens) % self._held and not end else self._kept
            made.text, self._kept = ready, self._kept[len(ready) :]
        return made


@pytest.mark.parametrize("echo", [False, True])
def test_offsets_of_streamed_tokens_are_those_of_the_whole(start, echo):
    running = start(Holding(3))
    body = {"prompt": "abc", "max_tokens": 8, "logprobs": 1, "echo": echo}
    whole = running.post(TEXT, body).json()["choices"][0]
    streamed = [c for chunk in chunks(running.post(TEXT, {**body, "stream": True})) for c in chunk["choices"]]
    assert "".join(c["text"] for c in streamed) == whole["text"]
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert [v for c in streamed for v in c["logprobs"][name]] == whole["logprobs"][name], name
    assert whole["logprobs"]["text_offset"] == list(range(11 if echo else 8))


def test_prompt_ids_of_a_chat_are_beside_the_choices(server):
    body = {"messages": HI, "max_tokens": 2, "return_token_ids": True, "n": 2}
    whole = server.post(CHAT, body).json()
    streamed = chunks(server.post(CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}}))
    told = [c["prompt_token_ids"] for c in streamed if "prompt_token_ids" in c]
    assert told
    assert all(t == whole["prompt_token_ids"] for t in told)
    assert streamed[0]["prompt_token_ids"] == list(b"<user>hi\n<assistant>")
    assert not any("prompt_token_ids" in choice for c in streamed for choice in c["choices"])
    assert all("usage" in c for c in streamed)
    first = next(
        server.client().chat.completions.create(model="fake", messages=HI, stream=True, extra_body={"return_token_ids": True})
    )
    assert first.prompt_token_ids == whole["prompt_token_ids"]


def test_what_was_not_asked_for_is_null_and_not_absent(server):
    client = server.client()
    completion = client.completions.create(model="fake", prompt="a", max_tokens=1)
    assert completion.choices[0].prompt_logprobs is None
    assert client.chat.completions.create(model="fake", messages=HI, max_tokens=1).prompt_logprobs is None
    assert server.post("/tokenize", {"prompt": "ab"}).json()["token_strs"] is None
    assert server.post("/tokenize", {"prompt": "ab", "return_token_strs": True}).json()["token_strs"] == ["a", "b"]


@pytest.mark.parametrize("body", [{"prompt": "x" * 5000}, {"messages": [{"role": "user", "content": "x" * 5000}]}])
def test_text_longer_than_the_context_can_be_counted(start, body):
    running = start(max_queued_requests=0)
    context = running.get("/v1/models").json()["data"][0]["max_model_len"]
    r = running.post("/tokenize", body)
    assert r.status_code == 200, r.text
    assert r.json()["count"] > 5000 - 1 > context == r.json()["max_model_len"]


def test_counting_tokens_takes_nobodys_place(start):
    running = start(max_queued_requests=0)
    admission = running.app.serving.admission
    held = [admission.enter(f"tenant {i}") for i in range(admission.limit)]
    assert running.post(TEXT, {"prompt": "a", "max_tokens": 1}).status_code == 429
    assert running.post("/tokenize", {"prompt": "abc"}).json()["count"] == 3
    assert running.post("/detokenize", {"tokens": [97]}).json()["prompt"] == "a"
    for ticket in held:
        ticket.close()


@pytest.mark.parametrize(("path", "body"), [(TEXT, {"prompt": "a"}), (CHAT, {"messages": HI})])
def test_a_stream_begins_with_its_first_token_though_that_has_no_text(start, path, body):
    """As special tokens have none: else a client would see no byte until the end."""

    class Mute(FakeEngine):
        def _output(self, i, p, tokens, text, before, end, whole=False):
            made = super()._output(i, p, tokens, text, before, end, whole)
            made.text = ""
            return made

    running = start(Mute(delay=0.3))
    with httpx.stream("POST", running.url + path, json={**body, "max_tokens": 200, "stream": True}, timeout=60) as r:
        assert r.status_code == 200
        assert running.engine.running  # far from its end


def test_an_error_before_the_first_token_still_has_its_status(start):
    running = start()

    def broken(*args, **kwargs):
        raise ZeroDivisionError

    running.engine.generate = broken
    assert running.post(TEXT, {"prompt": "a", "stream": True}).status_code == 500
