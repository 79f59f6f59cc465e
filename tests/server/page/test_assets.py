"""The web page as files: who gets it, without a key, under a policy that lets no other script or server in."""

from __future__ import annotations

import re
from importlib import resources

import httpx
from fake_engine import FakeEngine

from thalweg import LLM
from thalweg.server.app import Application
from thalweg.server.page import assets, suggestions
from thalweg.server.page.suggestions import suggest
from thalweg.server.settings import ServerSettings

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FILES = {f.name: f.read_bytes() for f in resources.files("thalweg.server.page").joinpath("files").iterdir()}


def test_browsers_get_the_page_and_others_what_they_got(server) -> None:
    page = server.get("/", headers=BROWSER)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert server.get("/").status_code == 404
    assert server.http.head("/").status_code == 200
    assert server.post("/", {}).status_code == 405


def test_every_file_is_listed_and_served_with_its_type(server) -> None:
    assert sorted(FILES) == sorted(assets.KINDS)
    for name, data in FILES.items():
        answer = server.get(f"/page/{name}")
        assert answer.content == data
        assert answer.headers["content-type"].startswith(assets.KINDS[name])
        assert server.get(f"/page/{name}", headers={"if-none-match": answer.headers["etag"]}).status_code == 304
    assert server.get("/page/__init__.py").status_code == 404


def test_the_policy_lets_nothing_else_in(server) -> None:
    policy = server.get("/", headers=BROWSER).headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["frame-ancestors"] == "'none'"
    assert rules["script-src"] == rules["connect-src"] == "'self'"
    assert "unsafe" not in policy


def test_the_files_are_small_and_ask_nobody_else() -> None:
    assert sum(map(len, FILES.values())) < 60_000
    text = b"\n".join(FILES.values()).decode()
    assert set(re.findall(r"\w+://[\w.]+", text)) == {"http://www.w3.org"}  # the name of SVG, which nobody fetches
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text) == []
    assert re.findall(r"<[^>]+\s(?:on\w+|style)=", FILES["index.html"].decode()) == []  # the policy would refuse both


def test_the_page_needs_no_key_and_what_it_shows_does(start) -> None:
    running = start(api_key=["secret"])
    assert running.get("/", headers=BROWSER).status_code == 200
    assert running.get("/page/app.js").status_code == 200
    for path in ("/", "/page/state", "/page/other.js", "/page/app.js/more"):
        assert running.get(path).status_code == 401
    assert running.post("/page/app.js", {}).status_code == 401
    assert running.get("/page/state", headers={"authorization": "Bearer secret"}).status_code == 200


def test_the_page_can_be_turned_off(start) -> None:
    running = start(webui=False, api_key=["secret"])
    paths = ("/", "/page/app.js", "/page/state")
    assert [running.get(p, headers=BROWSER).status_code for p in paths] == [401] * 3
    key = {**BROWSER, "authorization": "Bearer secret"}
    assert [running.get(p, headers=key).status_code for p in paths] == [404] * 3


def test_the_state_says_what_the_model_is_and_how_busy_it_is(server) -> None:
    state = server.get("/page/state").json()
    assert state["models"] == ["fake", "alias"]
    assert (state["generates"], state["chat"], state["state"], state["reason"]) == (True, True, "ready", "")
    assert state["facts"]["Context"] == "256 tokens"
    made = state["gauges"]["generated"]
    server.post("/v1/completions", {"model": "fake", "prompt": "x", "max_tokens": 5})
    assert server.get("/page/state").json()["gauges"]["generated"] == made + 5


async def test_the_page_is_there_while_the_model_loads() -> None:
    app = Application(ServerSettings(root_path="/llm"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        for path in ("/llm/", "/"):
            assert (await client.get(path, headers=BROWSER)).status_code == 200
        assert (await client.get("/llm/page/app.js")).content == FILES["app.js"]
        state = await client.get("/llm/page/state")
        assert (state.status_code, state.json()["error"]["message"]) == (503, "the model is loading")
        assert (await client.get("/llm/")).status_code == 503
        app.lifecycle.drain()
        assert (await client.get("/llm/", headers=BROWSER)).status_code == 503


def test_suggestions_fit_the_model_served(start) -> None:
    nano = str(resources.files("thalweg") / "nano" / "weights")
    assert suggest(nano, True, True) == suggestions.BUNDLED
    assert suggest("/models/other", True, True) == suggestions.QUESTIONS
    assert suggest("/models/other", True, False) == suggestions.BEGINNINGS
    assert suggest(nano, False, False) == ()
    assert tuple(start().get("/page/state").json()["suggestions"]) == suggestions.QUESTIONS
    assert tuple(start(FakeEngine(template=None)).get("/page/state").json()["suggestions"]) == suggestions.BEGINNINGS


def test_the_bundled_model_answers_what_is_suggested_for_it() -> None:
    llm = LLM(device="cpu", kv_cache_memory_bytes=40_000_000, max_model_len=256, use_tqdm_on_load=False)
    try:
        asks = [[{"role": "user", "content": text}] for text in suggestions.BUNDLED]
        can, ordered, total = (o.outputs[0].text for o in llm.chat(asks, use_tqdm=False))
        assert "small model" not in can
        assert (ordered, total) == ("bridge, river, tower", "42")
    finally:
        llm.shutdown()
