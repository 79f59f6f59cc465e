"""Loading, serving, draining: what probes say, who is let in, and what reaches strangers."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from fake_engine import FakeEngine

from thalweg.server.app import Application
from thalweg.server.settings import ServerSettings

PROBES = ("/livez", "/ready", "/readyz", "/health", "/ping")
TEXT = "/v1/completions"


def client(app: Application) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


async def statuses(http: httpx.AsyncClient) -> list[int]:
    return [(await http.get(p)).status_code for p in PROBES]


async def test_probes_follow_the_engine():
    app, engine = Application(ServerSettings()), FakeEngine()
    async with client(app) as http:
        assert await statuses(http) == [200, 503, 503, 503, 503]
        r = await http.post(TEXT, json={"prompt": "a"})
        assert (r.status_code, r.headers["retry-after"]) == (503, "1")
        assert "loading" in (await http.get("/readyz")).json()["reason"]
        app.open(engine)
        assert await statuses(http) == [200] * 5
        assert (await http.post(TEXT, json={"prompt": "a", "max_tokens": 1})).status_code == 200
        engine.dead = True
        assert await statuses(http) == [503] * 5  # it does not come back: restart the server
        assert (await http.head("/livez")).status_code == 503
        assert (await http.post("/readyz")).status_code == 405


async def test_an_engine_that_restarts_is_alive_and_not_ready(monkeypatch):
    app = Application(ServerSettings())
    monkeypatch.setattr(FakeEngine, "state", property(lambda self: "restarting"))
    app.open(FakeEngine())
    async with client(app) as http:
        assert await statuses(http) == [200, 503, 503, 503, 503]
        assert "restarting" in (await http.get("/health")).json()["reason"]


async def test_draining_lets_nobody_new_in_and_waits_for_those_inside():
    app, engine = Application(ServerSettings()), FakeEngine()
    engine.held = True
    app.open(engine)
    async with client(app) as http:
        inside = asyncio.create_task(http.post(TEXT, json={"prompt": "abc", "max_tokens": 20}))
        while not engine.running:
            await asyncio.sleep(0.001)
        app.lifecycle.drain()
        assert await statuses(http) == [200, 503, 503, 503, 503]
        for path in (TEXT, "/v1/chat/completions", "/nowhere"):
            r = await http.post(path, json={})
            assert (r.status_code, r.headers["connection"]) == (503, "close")
            assert int(r.headers["retry-after"]) > 0
        assert app.lifecycle.inside == 1
        engine.held = False
        await asyncio.wait_for(app.lifecycle.empty(), 60)
        assert (await inside).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_the_deadline_ends_what_runs_and_what_waits_with_an_error(stream):
    app, engine = Application(ServerSettings()), FakeEngine(delay=0.05)
    app.open(engine)
    async with client(app) as http:
        body = {"prompt": "abc", "max_tokens": 200, "stream": stream}
        inside = [asyncio.create_task(http.post(TEXT, json=body)) for _ in range(13)]
        while app.serving.admission.waiting < 3:
            await asyncio.sleep(0.001)
        while engine.made < 20:  # the first token of each is written
            await asyncio.sleep(0.001)
        app.lifecycle.drain()
        await app.serving.cut()
        await asyncio.wait_for(app.lifecycle.empty(), 60)
        answers = await asyncio.gather(*inside)
    if stream:  # those who waited had no first byte yet
        assert sorted(r.status_code for r in answers) == [200] * 10 + [503] * 3
        for r in answers[:10]:
            *_, error, done, end = r.text.split("\n\n")
            assert json.loads(error[6:])["error"]["code"] == 503
            assert (done, end) == ("data: [DONE]", "")
    else:
        assert {r.status_code for r in answers} == {503}
        assert all(int(r.headers["retry-after"]) > 0 for r in answers)
    assert not engine.running


@pytest.mark.slow
async def test_with_a_key_only_probes_are_open_also_while_loading():
    app = Application(ServerSettings(api_key=["sentinel-key"]))
    right = {"authorization": "Bearer sentinel-key"}
    async with client(app) as http:
        for opened in (False, True):
            if opened:
                app.open(FakeEngine())
                routes = {r.path for r in app._gate.app.routes}  # type: ignore[union-attr]
                assert {"/metrics", "/docs", "/openapi.json", "/v1/models", TEXT} <= routes
            else:
                routes = {TEXT, "/metrics"}
            for path in sorted(routes):
                for method in ("GET", "POST", "OPTIONS", "HEAD", "PUT", "TRACE"):
                    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "sentinel-key"}):
                        r = await http.request(method, path.replace("{name:path}", "x"), headers=headers)
                        assert r.status_code == 401, (method, path)
                assert (await http.get(path.replace("{name:path}", "x"), headers=right)).status_code != 401
            assert all(s in (200, 503) for s in await statuses(http))


KEYS = ["", "Bearer", "bearer", "Bearer \xff", "Bearer sentinel-key2", "Bearer sentinel-ke", "Basic sentinel-key",
        "Bearer sentinel-key sentinel-key", "Bearer " + "x" * 8000, "sentinel-key"]  # fmt: skip


def test_odd_keys_are_refused_and_nothing_else(start):
    running = start(api_key=["sentinel-key"])
    for value in KEYS:
        r = httpx.get(running.url + "/version", headers=[("authorization", value.encode("latin-1"))])
        assert r.status_code == 401, value
    twice = [("authorization", "Bearer sentinel-key")] * 2
    assert httpx.get(running.url + "/version", headers=twice).status_code == 401
    assert httpx.get(running.url + "/version?api_key=sentinel-key").status_code == 401


def test_secrets_and_insides_reach_neither_logs_nor_answers(start, logged):
    settings = ServerSettings(api_key=["sentinel-key"])
    assert "sentinel" not in repr(settings)
    assert "1 api keys" in repr(settings)
    running = start(api_key=["sentinel-key"])
    right = {"authorization": "Bearer sentinel-key"}
    for headers in (right, {"authorization": "Bearer sentinel-typo"}):
        for path in ("/version", "/metrics", "/nowhere/sentinel-path", "/openapi.json"):
            r = httpx.get(running.url + path, headers=headers)
            assert "sentinel" not in r.text
    r = httpx.post(running.url + TEXT, json={"prompt": "!dead"}, headers=right)
    ours = "\n".join(logged)
    assert TEXT in ours, "access lines are looked at too"
    assert "sentinel-key" not in ours
    assert "sentinel-typo" not in ours
    assert r.status_code == 500
    number = r.json()["error"]["message"].rsplit(" ", 1)[1]
    assert number in ours, "the answer's error number is in the log"
    for word in ("/secret", "Traceback", "0x", ".py"):
        assert word not in r.text
