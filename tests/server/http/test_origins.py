"""Web pages of other origins: what a browser sends for them without asking reaches no route."""

from __future__ import annotations

import re
from typing import Any

import openai
import pytest
from fake_engine import FakeEngine

ATTACKER = "http://attacker.example"
UPLOAD: dict[str, Any] = {"files": {"file": ("in.jsonl", b"x")}, "data": {"purpose": "batch"}}
SIMPLE = [
    {"files": {"file": ("a", b"x")}},
    {"content": b'{"prompt": "a"}', "headers": {"Content-Type": "text/plain"}},
    {"data": {"a": "b"}},
    {},
]
"""Bodies that a form or a script sends without a preflight (the Fetch standard's safelisted types, or none)."""


def changing(running: Any) -> list[tuple[str, str]]:
    """(method, path) of every route that may change something."""
    routes = running.app._gate.app.routes
    found = [(m, re.sub(r"{.*?}", "x", r.path)) for r in routes for m in sorted(r.methods or ()) if m not in ("GET", "HEAD")]
    assert len(found) > 20
    return found


@pytest.mark.slow
def test_no_route_takes_what_a_page_sends_without_asking(start):
    engine = FakeEngine()
    running = start(engine, server_dev_mode=True)
    for method, path in changing(running):
        for body in SIMPLE:
            for browser in ({"Origin": ATTACKER}, {"Origin": "null"}, {"Origin": ATTACKER, "Sec-Fetch-Site": "cross-site"}):
                headers = {**body.get("headers", {}), **browser}
                answer = running.http.request(method, path, **{**body, "headers": headers})
                assert answer.status_code == 403, (method, path, body)
                assert "--allowed-origins" in answer.json()["error"]["message"]
    assert not engine.prompts
    assert not running.client().files.list().data


def test_other_pages_of_this_machine_are_other_origins(start):
    """A development server on another port, say."""
    running = start()
    for browser in ({"Origin": "http://127.0.0.1:1"}, {"Sec-Fetch-Site": "same-site", "Origin": running.url}):
        assert running.http.post("/v1/files", headers=browser, **UPLOAD).status_code == 403


@pytest.mark.parametrize(
    "browser",
    [
        {},
        {"Origin": "SELF"},
        {"Origin": "SELF", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "https://behind.a.proxy", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_the_servers_own_page_and_other_programs_are_served(server, browser):
    headers = {k: server.url if v == "SELF" else v for k, v in browser.items()}
    assert server.http.post("/v1/files", headers=headers, **UPLOAD).status_code == 200


def test_allowed_origins_may_send_forms_too(start):
    for allowed in (["https://a.example", "http://b.example"], ["*"]):
        running = start(allowed_origins=allowed)
        for origin, status in (("http://b.example", 200), ("http://c.example", 200 if "*" in allowed else 403)):
            headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
            answer = running.http.post("/v1/files", headers=headers, **UPLOAD)
            assert answer.status_code == status
            assert ("access-control-allow-origin" in answer.headers) == (status == 200)


def test_json_is_answered_as_before(server):
    """A browser has asked before it sends JSON for a page; programs that name an origin are not browsers."""
    headers = {"Origin": ATTACKER}
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=headers).status_code == 200
    assert server.get("/v1/models", headers=headers).status_code == 200
    assert server.http.options("/v1/files", headers={**headers, "Access-Control-Request-Method": "POST"}).status_code == 405


def test_with_a_key_a_browser_has_asked(start):
    running = start(api_key=["k"])
    assert running.http.post("/v1/files", headers={"Origin": ATTACKER}, **UPLOAD).status_code == 401
    client = openai.OpenAI(base_url=running.url + "/v1", api_key="k", default_headers={"Origin": ATTACKER})
    assert client.files.create(file=("a", b"x"), purpose="batch").bytes == 1
