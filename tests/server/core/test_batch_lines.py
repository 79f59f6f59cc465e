"""Batches: each line is answered as the same request over HTTP, in order, whatever is wrong with its neighbours."""

from __future__ import annotations

import asyncio
import json

import pytest
from fake_engine import FakeEngine
from openai.types import Completion
from openai.types.chat import ChatCompletion

from thalweg.server.app import make_app
from thalweg.server.core.lines import in_order
from thalweg.server.settings import ServerSettings

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def line(name: str, url: str = "/v1/completions", body: object = None, **more: object) -> bytes:
    body = {"prompt": name, "max_tokens": 3} if body is None else body
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body, **more}).encode()


async def through(lines: list[bytes], at_once: int = 4) -> list[dict]:
    app = make_app(FakeEngine(), ServerSettings())  # type: ignore[arg-type]
    return [json.loads(one.line) async for one in in_order(app.serving.lines, lines, at_once)]


async def test_answers_come_in_order_and_are_those_of_the_routes():
    names = [f"r{i}" for i in range(9)]
    done = await through([line(n) for n in names])
    assert [d["custom_id"] for d in done] == names
    assert len({d["id"] for d in done}) == 9
    for d in done:
        assert d["error"] is None
        assert d["response"]["status_code"] == 200
        made = Completion.model_validate(d["response"]["body"])
        assert made.usage.completion_tokens == 3
    (chat,) = await through([line("c", "/v1/chat/completions", CHAT)])
    assert ChatCompletion.model_validate(chat["response"]["body"]).choices[0].message.content


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "JSON"),
        (b"[1]", "object"),
        (line("a", "/v1/audio/speech"), "url: must be one of"),
        (line("a", method="GET"), "method: must be POST"),
        (line("a", body=[1]), "body: must be an object"),
        (line("a", body={**CHAT, "stream": True}, url="/v1/chat/completions"), "body.stream: not supported"),
        (line(""), "custom_id: must be a string"),
        (line("a", body={"prompt": "x", "max_tokens": 0}), "max_tokens"),
        (line("a", body={"prompt": "x", "model": "other"}), "model 'other' does not exist"),
        (line("a", "/v1/embeddings", {"input": "x"}), "embed"),
    ],
)
async def test_what_is_wrong_with_a_line_is_its_answer_and_nobody_elses(data, said):
    before, bad, after = await through([line("before"), data, line("after")])
    assert before["response"]["status_code"] == after["response"]["status_code"] == 200
    assert 400 <= bad["response"]["status_code"] < 500
    assert said in bad["response"]["body"]["error"]["message"]
    assert bad["error"] is None  # as OpenAI has it: that is for requests that no route answered
    if data.startswith(b'{"custom_id": "a"'):
        assert bad["custom_id"] == "a"


async def test_no_more_lines_are_read_than_may_be_under_way():
    app = make_app(FakeEngine(), ServerSettings())  # type: ignore[arg-type]
    read: list[int] = []

    def lines():
        for i in range(20):
            read.append(i)
            yield line(f"r{i}")

    made = in_order(app.serving.lines, lines(), 3)
    await anext(made)
    assert len(read) <= 4
    await made.aclose()
    assert len(read) <= 4
    assert app.serving.running == set()  # what was under way has ended


async def test_a_line_that_is_cancelled_leaves_nothing_behind():
    app = make_app(FakeEngine(), ServerSettings())  # type: ignore[arg-type]
    task = asyncio.create_task(app.serving.lines.answer(line("long", body={"prompt": "x", "max_tokens": 100_000})))
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert app.serving.running == set()
