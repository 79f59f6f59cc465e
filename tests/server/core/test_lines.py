"""Lines of a batch file, answered without a socket as the routes answer over one."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from fake_engine import FakeEngine

from thalweg.server.app import make_app
from thalweg.server.core import lines as lines_module
from thalweg.server.core.lines import LineAnswer
from thalweg.server.http.bodies import SMALL
from thalweg.server.settings import ServerSettings

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


def ask(*lines: Any, **settings: Any) -> list[tuple[LineAnswer, dict[str, Any]]]:
    engine = FakeEngine()
    app = make_app(engine, ServerSettings(**settings))  # type: ignore[arg-type]

    async def main() -> list[LineAnswer]:
        texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        return await asyncio.gather(*(app.serving.lines.answer(t) for t in texts))

    try:
        answers = asyncio.run(main())
    finally:
        engine.chat.close()
    assert app.serving.admission.places == 0
    return [(a, json.loads(a.line)) for a in answers]


def line(i: int = 0, url: str = "/v1/chat/completions", **fields: Any) -> dict[str, Any]:
    return {"custom_id": f"c{i}", "method": "POST", "url": url, "body": {**CHAT, **fields}}


def test_a_line_has_the_routes_answer(server):
    ((answered, said),) = ask(line())
    over_http = server.post("/v1/chat/completions", CHAT).json()
    assert answered.ok
    assert (said["custom_id"], said["error"], said["response"]["status_code"]) == ("c0", None, 200)
    same = {"choices", "usage", "model", "object"}
    assert {k: said["response"]["body"][k] for k in same} == {k: over_http[k] for k in same}


@pytest.mark.slow
def test_more_lines_than_the_queue_holds_wait_for_a_place():
    answers = ask(*(line(i) for i in range(40)), max_queued_requests=0)
    assert [(a.ok, s["custom_id"]) for a, s in answers] == [(True, f"c{i}") for i in range(40)]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"custom_id": 5}, "custom_id"),
        ({"method": "GET"}, "method"),
        ({"url": "/metrics"}, "url"),
        ({"url": "/v1/embeddings"}, "url"),
        ({"body": []}, "body"),
        ({"body": {**CHAT, "stream": True}}, "body.stream"),
        ({"body": {**CHAT, "max_tokens": -1}}, "max_tokens"),
        ({"body": {**CHAT, "model": "other"}}, "model"),
    ],
)
def test_a_wrong_line_is_answered_with_what_is_wrong(wrong, param):
    (answered, said), good = ask({**line(), **wrong}, line(1))
    assert not answered.ok
    assert said["response"]["status_code"] in (400, 404)
    assert said["response"]["body"]["error"]["param"] == param
    assert good[0].ok


def test_long_lines_are_read_and_written_beside_the_event_loop(monkeypatch):
    """Wrong ones too: the loop has other clients."""
    threads: dict[str, set[str]] = {}

    def note(name: str) -> None:
        own = getattr(lines_module, name)

        def noted(*given: Any) -> Any:
            threads.setdefault(name, set()).add(threading.current_thread().name)
            return own(*given)

        monkeypatch.setattr(lines_module, name, noted)

    note("read")
    note("custom_id_of")
    long = json.dumps({"padding": "x" * SMALL, **line()}).encode()
    here = threading.current_thread().name
    ((good, _), (bad, _)) = ask(long, long[:-1])
    assert (good.ok, bad.ok) == (True, False)
    assert set(threads) == {"read", "custom_id_of"}
    assert here not in set.union(*threads.values())
    threads.clear()
    ask(line())
    assert threads == {"read": {here}}


def test_what_is_no_json_has_no_id():
    ((answered, said),) = ask(b"{not json")
    assert (answered.ok, said["custom_id"], said["response"]["status_code"]) == (False, None, 400)
