"""Keys, disconnects, ids, metrics and the options of the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from functools import partial

import httpx
import openai
import pytest
from fake_engine import FakeEngine
from loopback import free_port

get, post = partial(httpx.get, timeout=60), partial(httpx.post, timeout=60)
MESSAGES = [{"role": "user", "content": "hi"}]
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)


ROUTES = ["/v1/models", "/version", "/metrics", "/load", "/openapi.json", "/docs", "/nowhere"]


def test_every_route_but_health_needs_the_key(start):
    running = start(api_key=["k1", "k2"])
    for path in ROUTES:
        r = running.get(path)
        assert r.status_code == 401, path
        assert r.json()["error"]["type"] == "AuthenticationError"
        assert r.headers["www-authenticate"] == "Bearer"
    for path in (TEXT, CHAT, "/tokenize", "/detokenize"):
        assert running.post(path, {"prompt": "a"}).status_code == 401
    for path in ("/health", "/ping", "/health/", "/ping/"):
        assert running.get(path, follow_redirects=False).status_code == 200
    for bad in ("Bearer k3", "Bearer k", "Bearer", "k1", "Basic k1", "Bearer k1 k2"):
        assert running.get("/version", headers={"authorization": bad}).status_code == 401, bad
    for key in ("k1", "k2"):
        assert running.client(key).models.list().data[0].id == "fake"
    with pytest.raises(openai.AuthenticationError):
        running.client("wrong").models.list()


def test_a_path_cannot_dress_up_as_an_open_one(start):
    running = start(api_key=["k"])
    for path in (
        "/health/x",
        "/health//",
        "/health/../v1/models",
        "//health",
        "/health%2f..%2fv1/models",
        "/v1/models?x=/health",
    ):
        r = get(running.url + path, follow_redirects=False)
        assert r.status_code == 401, path


def test_metrics_are_public_only_where_the_flag_says_so(start):
    running = start(api_key=["k"], public_metrics=True)
    assert running.get("/metrics").status_code == 200
    for path in ("/metrics/x", "//metrics", "/load", "/v1/models?x=/metrics"):
        assert running.get(path).status_code == 401, path
    assert post(running.url + "/metrics").status_code == 401


def test_a_metrics_port_answers_metrics_and_probes_alone_and_without_a_key(start):
    port = free_port()
    running = start(api_key=["k"], metrics_port=port)
    other = f"http://127.0.0.1:{port}"
    assert "num_requests_running" in get(other + "/metrics").text
    assert get(other + "/health").status_code == 200
    for path in ("/v1/models", "/metrics/x", "/load", "/"):
        assert get(other + path, headers={"Authorization": "Bearer k"}).status_code == 404, path
    assert post(other + "/metrics").status_code == 404
    assert running.get("/metrics").status_code == 401
    assert running.get("/v1/models", headers={"Authorization": "Bearer k"}).status_code == 200


def test_preflight_needs_no_key(start):
    running = start(api_key=["k"], allowed_origins=["http://a.example"])
    headers = {"Origin": "http://a.example", "Access-Control-Request-Method": "POST"}
    r = httpx.options(running.url + CHAT, headers=headers)
    assert r.status_code == 200
    assert r.headers["access-control-allow-origin"] == "http://a.example"
    assert httpx.options(running.url + CHAT, headers={**headers, "Origin": "http://b.example"}).status_code == 400


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.slow
async def test_a_client_that_leaves_aborts_its_request(start, stream, path):
    running = start(FakeEngine(delay=0.3))
    body = {"prompt": ["abc", "d"]} if path == TEXT else {"messages": MESSAGES}
    choices = 2 if path == TEXT else 1
    async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        asking = asyncio.create_task(client.post(path, json={**body, "max_tokens": 200, "stream": stream}))
        while running.engine.made < 2 * choices:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.wait({asking})
    until(lambda: not running.engine.running)
    assert len(running.engine.aborted) == choices
    made = running.engine.made
    time.sleep(0.2)
    assert running.engine.made == made
    assert running.post(TEXT, {"prompt": "a", "max_tokens": 1}).status_code == 200


def test_stream_frames_on_the_wire(server):
    r = server.post(TEXT, {"prompt": "a", "max_tokens": 3, "stream": True})
    assert r.headers["content-type"].startswith("text/event-stream")
    events = r.text.split("\n\n")
    assert events[-1] == ""
    assert events[-2] == "data: [DONE]"
    assert all(e.startswith("data: ") for e in events[:-1])
    bodies = [json.loads(e[6:]) for e in events[:-2]]
    assert {b["object"] for b in bodies} == {"text_completion"}
    assert all("usage" not in b for b in bodies)


@pytest.mark.slow
def test_same_request_id_twice_at_once_is_no_conflict(start):
    running = start(FakeEngine(delay=0.02), enable_request_id_headers=True)
    with httpx.Client(base_url=running.url, timeout=60) as client:
        with client.stream("POST", TEXT, json={"prompt": "a", "max_tokens": 20, "stream": True, "request_id": "same"}) as one:
            r = client.post(TEXT, json={"prompt": "a", "max_tokens": 2}, headers={"X-Request-Id": "same"})
            one.read()
        assert one.status_code == r.status_code == 200
    assert r.json()["id"] == "cmpl-same"
    assert r.headers["x-request-id"] == "same"


def test_request_id_is_not_echoed_unless_asked(server):
    r = server.post(TEXT, {"prompt": "a"}, headers={"X-Request-Id": "me"})
    assert "x-request-id" not in r.headers
    assert server.post(TEXT, {"prompt": "a"}, headers={"X-Request-Id": "x" * 300}).status_code == 400


def test_every_answer_gets_an_id_where_ids_are_shown(start):
    running = start(enable_request_id_headers=True)
    one, two = (running.post(TEXT, {"prompt": "a", "max_tokens": 1}) for _ in range(2))
    assert one.json()["id"] == f"cmpl-{one.headers['x-request-id']}"
    assert one.headers["x-request-id"] != two.headers["x-request-id"]
    named = running.post(TEXT, {"prompt": "a", "max_tokens": 1, "request_id": "mine"})
    assert named.json()["id"] == "cmpl-mine"
    assert running.get("/nowhere").headers["x-request-id"]
    assert running.post(TEXT, {"prompt": "a"}, headers={"X-Request-Id": "x" * 300}).status_code == 400


def test_what_a_method_may_be_is_said(server):
    for path, method, allowed in (
        (TEXT, "GET", {"POST"}),
        ("/v1/models", "POST", {"GET", "HEAD"}),
        ("/metrics", "DELETE", {"GET", "HEAD"}),
        ("/health", "PUT", {"GET", "HEAD"}),
        ("/ping", "PUT", {"GET", "HEAD", "POST"}),
    ):
        r = server.http.request(method, path)
        assert r.status_code == 405, path
        assert {w.strip() for w in r.headers["allow"].split(",")} == allowed


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/fake", "/version", "/metrics", "/load", "/health"])
def test_what_can_be_read_can_be_asked_for_without_its_body(server, path):
    whole, head = server.get(path), server.http.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert int(head.headers["content-length"]) > 0


def test_usage_options(start):
    running = start(enable_prompt_tokens_details=True, enable_force_include_usage=True)
    r = running.post(TEXT, {"prompt": "abc", "max_tokens": 2}).json()
    assert r["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    client = running.client()
    for stream in (
        client.completions.create(model="fake", prompt="abc", max_tokens=2, stream=True),
        client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=2, stream=True),
    ):
        made = [c.usage.completion_tokens for c in stream]  # in every chunk
        assert made[-2:] == [2, 2]
        assert made == sorted(made)


@pytest.mark.parametrize(
    ("settings", "check"),
    [
        ({"fingerprint_mode": "none"}, lambda f: f is None),
        ({"fingerprint_mode": "custom", "fingerprint_value": "v1"}, lambda f: f == "v1"),
        ({"fingerprint_mode": "hash"}, lambda f: len(f) == 8),
    ],
)
def test_fingerprint_modes(start, settings, check):
    assert check(start(**settings).post(TEXT, {"prompt": "a"}).json().get("system_fingerprint"))


def test_template_options(start):
    running = start(
        chat_template="{% for m in messages %}{{ m.content }}{% endfor %}{{ tone }}{{ tools | length if tools else 0 }}",
        default_chat_template_kwargs={"tone": "calm"},
        trust_request_chat_template=True,
        response_role="bot",
    )
    ask = lambda **more: running.post("/tokenize", {"messages": MESSAGES, **more}).json()["tokens"]  # noqa: E731
    assert bytes(ask()) == b"hicalm0"
    assert bytes(ask(chat_template_kwargs={"tone": "loud"})) == b"hiloud0"
    assert bytes(ask(chat_template="T{{ messages[0].content }}")) == b"Thi"
    assert bytes(ask(tools=[{"type": "function", "function": {"name": "f"}}])) == b"hicalm1"
    r = running.post(CHAT, {"messages": MESSAGES, "max_tokens": 1}).json()
    assert r["choices"][0]["message"]["role"] == "bot"


def test_priority_needs_the_policy(start):
    running = start(FakeEngine(policy="priority"))
    hints = {"nvext": {"agent_hints": {"priority": 2}}}
    for fields in ({"priority": -3}, hints, {"priority": 5, **hints}):
        assert running.post(TEXT, {"prompt": "a", **fields}).status_code == 200
    assert running.engine.priorities == [-3, -2, 5], "Dynamo's hint is sooner the higher it is, and the field goes first"
    assert start(FakeEngine()).post(TEXT, {"prompt": "a", **hints}).status_code == 200, "a hint asks for no policy"


def test_version_and_docs(start):
    import thalweg

    running = start()
    assert running.get("/version").json() == {"version": thalweg.__version__}
    paths = running.get("/openapi.json").json()["paths"]
    assert {TEXT, CHAT, "/tokenize", "/v1/models"} <= set(paths)
    assert "/v1/models/{name}" in paths
    assert all("openapi.json" in running.get(p).text for p in ("/docs", "/redoc"))
    hidden = start(disable_fastapi_docs=True)
    assert [hidden.get(p).status_code for p in ("/docs", "/redoc", "/openapi.json")] == [404] * 3


def test_the_document_bounds_fields_in_words_of_json_schema(start):
    document = start().get("/openapi.json").json()

    def bounds(form):
        if isinstance(form, dict):
            yield from (k for k, v in form.items() if isinstance(v, int | float) and not isinstance(v, bool))
            if form.get("type") == "object":
                assert "maxLength" not in form, form
        for part in form.values() if isinstance(form, dict) else form if isinstance(form, list) else ():
            yield from bounds(part)

    found = set(bounds([document["paths"], document["components"]]))
    assert found >= {"minimum", "maximum", "exclusiveMaximum", "maxProperties"}
    assert not found & {"ge", "gt", "le", "lt"}


def test_the_document_is_valid_and_names_what_it_refers_to(start):
    """Against the OpenAPI project's own schema where that is installed; references, forms and answers always."""
    document = start().get("/openapi.json").json()
    text = json.dumps(document)
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert {"ChatMessage", "Tool", "StreamOptions", "Error"} <= names
    assert names <= set(document["components"]["schemas"])
    assert "$defs" not in text
    for path, methods in document["paths"].items():
        for operation in methods.values():
            answers = operation["responses"]
            assert {"200", "401", "500", "503"} <= set(answers), path
            if "requestBody" in operation:
                assert {"400", "413", "415", "429"} <= set(answers), path
    for path in (TEXT, CHAT):
        assert set(document["paths"][path]["post"]["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    forms = document["paths"]["/tokenize"]["post"]["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    assert [("prompt" in f["properties"], "messages" in f["properties"]) for f in forms] == [(True, False), (False, True)]
    with contextlib.suppress(ImportError):
        from openapi_spec_validator import validate

        validate(document)


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_the_page_that_shows_the_document_asks_nobody_else(start, path):
    page = start().get(path)
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "://" not in page.text
    assert "<script" not in page.text
    for word in (TEXT, CHAT, "max_tokens", "messages"):
        assert word in page.text


def test_root_path(start):
    running = start(root_path="/llm", api_key=["k"])
    assert running.get("/llm/health").status_code == 200
    assert running.get("/llm/version").status_code == 401
    assert running.get("/llm/version", headers={"authorization": "Bearer k"}).status_code == 200


def test_load_counts_requests_in_flight(start):
    running = start(FakeEngine(delay=0.3), enable_server_load_tracking=True)
    assert running.get("/load").json() == {"server_load": 0}
    with httpx.stream("POST", running.url + TEXT, json={"prompt": "a", "max_tokens": 100, "stream": True}) as r:
        lines = r.iter_lines()
        next(lines)
        assert running.get("/load").json() == {"server_load": 1}
    until(lambda: running.get("/load").json() == {"server_load": 0})


def test_metrics_count_requests(start):
    running = start()
    running.post(TEXT, {"prompt": "abc", "max_tokens": 5})
    running.post(TEXT, {"prompt": "abc", "max_tokens": 5, "n": 0})
    running.get("/a/strange/path")
    text = running.get("/metrics").text
    for line in (
        'thalweg:request_success_total{engine="0",finished_reason="length",model_name="fake"} 1.0',
        'thalweg:request_prompt_tokens_sum{engine="0",model_name="fake"} 3.0',
        'thalweg:request_generation_tokens_sum{engine="0",model_name="fake"} 5.0',
        'thalweg:time_to_first_token_seconds_sum{engine="0",model_name="fake"} 1.0',
        'thalweg:request_queue_time_seconds_sum{engine="0",model_name="fake"} 0.5',
        'http_requests_total{handler="/v1/completions",method="POST",status="200"} 1.0',
        'http_requests_total{handler="/v1/completions",method="POST",status="400"} 1.0',
        'http_requests_total{handler="other",method="GET",status="404"} 1.0',
    ):
        assert line in text
    assert "strange" not in text


def test_requests_are_logged_only_when_asked_and_cut_as_asked(start, caplog):
    with caplog.at_level("INFO", logger="thalweg.server"):
        start().post(TEXT, {"prompt": "my secret", "max_tokens": 1})
        assert "secret" not in caplog.text
        start(enable_log_requests=True, max_log_len=2).post(TEXT, {"prompt": "my secret", "max_tokens": 1})
    assert "prompt 'my'" in caplog.text
    assert "secret" not in caplog.text
