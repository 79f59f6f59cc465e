"""Options that change what the server does: configuration from a file, middleware, logging, the size of heads."""

from __future__ import annotations

import json
import logging
import logging.config
import time
from collections.abc import Iterator

import pytest
from fake_engine import FakeEngine
from starlette.responses import PlainTextResponse
from test_flags import complaint, engine, parse, server

from thalweg.errors import ConfigError
from thalweg.host import envs

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.fixture
def _as_before() -> Iterator[None]:
    """Loggers keep nothing of a test."""
    names = ("", "thalweg.server.errors.stacks", "uvicorn", "uvicorn.access", "uvicorn.error")
    before = [(logging.getLogger(n), logging.getLogger(n).level, list(logging.getLogger(n).handlers)) for n in names]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


# ------------------------------------------------------------------ --config


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> str:
        (tmp_path / "config.yaml").write_text(text)
        return str(tmp_path / "config.yaml")

    return write


def test_flags_come_from_the_file_and_the_command_line_wins(written, capsys):
    file = written(
        "model: org/name\nport: 9000\nmax_model_len: 4k\nenable-prefix-caching: false\nenable_log_requests: true\n"
        "served-model-name: [a, b]\nhf-overrides: {rope_theta: 5.0, x: [1]}\nallowed-origins: ['http://a']\nseed: null\n"
        "additional-config.threads: 2\napi-key: '123'\ntensor-parallel-size: 1\n"
    )
    args = engine("--config", file, "--max-model-len", "2k")
    assert (args.model, args.max_model_len, args.enable_prefix_caching) == ("org/name", 2000, False)
    assert (args.served_model_name, args.hf_overrides) == (["a", "b"], {"rope_theta": 5.0, "x": [1]})
    assert args.additional_config == {"threads": 2}
    made = server("--config", file, "--port", "1")
    assert (made.port, made.enable_log_requests, made.allowed_origins, made.api_key) == (1, True, ["http://a"], ["123"])
    assert engine("other/model", "--config", file).model == "other/model"
    assert capsys.readouterr().err == ""


def test_an_empty_file_says_nothing(written):
    assert engine("--config", written("")) == engine()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot: 1", "prot: there is no such flag"),
        ("[1, 2]", "must hold names of flags and their values, not list"),
        ("a: [1", "is not valid YAML"),
        ("config: other.yaml", "config: a file cannot name another one"),
        ("fully-sharded-loras: true", "--fully-sharded-loras: one of both matrices"),
        ("!!python/object/apply:os.getpid []", "is not valid YAML"),
    ],
)
def test_a_file_that_cannot_be_honoured_is_refused_by_its_key(written, text, said):
    file = written(text)
    with pytest.raises(ConfigError, match=said):
        parse("--config", file)


def test_a_wrong_value_is_told_with_the_file(written, capsys):
    file = written("port: many")
    assert f"{file}: --port: 'many' is not a whole number" in complaint(capsys, "--config", file)


def test_a_file_that_is_not_there():
    with pytest.raises(ConfigError, match=r"--config: '/no/such\.yaml' cannot be read"):
        parse("--config", "/no/such.yaml")


# ------------------------------------------------------------------ environment


def test_variables_without_effect_may_be_made_fatal(monkeypatch):
    parse("--fail-on-environ-validation")
    monkeypatch.setenv("VLLM_USE_V1", "1")
    with pytest.raises(ConfigError, match=r"--fail-on-environ-validation: .*VLLM_USE_V1"):
        parse("--fail-on-environ-validation")
    assert envs.foreign() is not None


# ------------------------------------------------------------------ --middleware


class Teapot:
    """A class, made with the application alone."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http" and scope["path"] == "/teapot":
            await PlainTextResponse("short and stout", 418)(scope, receive, send)
            return
        await self.app(scope, receive, send)


async def marked(request, call_next):
    """A function, as the decorator of FastAPI takes it."""
    response = await call_next(request)
    response.headers["x-marked"] = request.url.path
    return response


def test_middleware_stands_before_every_route(start):
    running = start(**_middleware("test_options.Teapot", "test_options.marked"))
    assert running.get("/teapot").text == "short and stout"
    for path in ("/teapot", "/health", "/v1/models"):
        assert running.get(path).headers["x-marked"] == path
    body = {"prompt": "a", "stream": True, "max_tokens": 3}
    assert running.post(TEXT, body).text.endswith("data: [DONE]\n\n")


def _middleware(*paths):
    made = server(*(word for path in paths for word in ("--middleware", path)))
    assert len(made.middleware) == len(paths)
    return {"middleware": made.middleware}


@pytest.mark.parametrize("path", ["x", "no.such.module", "json.nothing", "json.JSONDecodeError.x", "json.dumps", ".x"])
def test_middleware_that_is_none_is_refused_by_its_path(path):
    with pytest.raises(ConfigError, match="--middleware: "):
        server("--middleware", path)


# ------------------------------------------------------------------ logging


@pytest.mark.parametrize("stream", [False, True])
def test_outputs_are_logged_once_each_with_their_request(start, caplog, stream):
    caplog.set_level(logging.INFO)
    running = start(enable_log_requests=True, enable_log_outputs=True, max_log_len=9)
    sent = {"x-request-id": "mine"}
    body = {"prompt": "a", "n": 2, "max_tokens": 4, "stream": stream}
    answer = running.post(TEXT, body, headers=sent)
    texts = {0: "", 1: ""}
    parts = [json.loads(p) for p in answer.text.split("data: ") if p.startswith("{")] if stream else [answer.json()]
    for choice in (c for part in parts for c in part["choices"]):
        texts[choice["index"]] += choice["text"]
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("answer cmpl-mine")]
    assert lines == [f"answer cmpl-mine choice {i}: 4 tokens, length, {texts[i][:9]!r}" for i in (0, 1)]


def test_pieces_of_a_stream_are_logged_where_asked_for(start, caplog):
    caplog.set_level(logging.INFO)
    running = start(enable_log_requests=True, enable_log_outputs=True, enable_log_deltas=True)
    for stream in (True, False):
        running.post(TEXT, {"prompt": "a", "max_tokens": 4, "stream": stream}, headers={"x-request-id": f"s{stream}"})
    lines = [r.getMessage() for r in caplog.records if " goes on: " in r.getMessage()]
    assert lines
    assert all(line.startswith("answer cmpl-sTrue") for line in lines)  # one that is not streamed has no pieces


def test_outputs_are_not_logged_unless_asked_for(start, caplog):
    caplog.set_level(logging.INFO)
    start(enable_log_requests=True).post(TEXT, {"prompt": "a", "max_tokens": 4})
    assert any("request cmpl-" in r.getMessage() for r in caplog.records)
    assert not any("answer cmpl-" in r.getMessage() for r in caplog.records)
    with pytest.raises(ConfigError, match="--enable-log-outputs: needs --enable-log-requests"):
        server("--enable-log-outputs")


@pytest.mark.usefixtures("_as_before")
def test_where_an_error_was_decided_is_logged_where_asked_for(start, caplog):
    from thalweg.cli.serve import _logging

    caplog.set_level(logging.INFO)
    running = start()
    bad = {"prompt": "a", "model": "no\nsuch"}
    assert running.post(TEXT, bad).status_code == 404
    assert not caplog.records or not any("answered with" in r.getMessage() for r in caplog.records)
    _logging(server("--log-error-stack"))
    assert running.post(TEXT, bad).status_code == 404
    (line,) = [r.getMessage() for r in caplog.records if "answered with" in r.getMessage()]
    assert "serving.py" in line
    assert "no\nsuch" not in line  # a client cannot write lines of its own


@pytest.mark.usefixtures("_as_before")
def test_a_logging_configuration_is_in_force_for_server_and_web_server(start, tmp_path):
    from thalweg.cli.serve import _logging

    seen = tmp_path / "log"
    handler = {"class": "logging.FileHandler", "filename": str(seen), "formatter": "short"}
    config = {
        "version": 1, "formatters": {"short": {"format": "<%(name)s> %(message)s"}}, "handlers": {"file": handler},
        "loggers": {"uvicorn.access": {"handlers": ["file"], "level": "INFO"}}, "root": {"handlers": ["file"], "level": "INFO"},
    }  # fmt: skip
    (tmp_path / "log.json").write_text(json.dumps(config))
    made = server("--log-config-file", str(tmp_path / "log.json"), "--enable-log-requests")
    _logging(made)
    running = start(log_config_file=made.log_config_file, enable_log_requests=True)
    running.post(TEXT, {"prompt": "a", "max_tokens": 1})
    logging.shutdown()
    text = seen.read_text()
    assert "<thalweg.server.core.serving> request cmpl-" in text
    assert "<uvicorn.access> " in text


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("text", ["{", "[]", '{"version": 9}', '{"version": 1, "handlers": {"a": {"class": "no.such"}}}'])
def test_a_logging_configuration_that_is_none_is_refused(tmp_path, text):
    from thalweg.cli.serve import _logging

    (tmp_path / "log.json").write_text(text)
    with pytest.raises(ConfigError, match="--log-config-file: "):
        _logging(server("--log-config-file", str(tmp_path / "log.json")))


# ------------------------------------------------------------------ heads


def test_heads_may_be_as_large_as_told(start):
    usual, wide = start(), start(**_heads("--h11-max-incomplete-event-size", "65536", "--h11-max-header-count", "300"))
    large, many = {"x-large": "a" * 40_000}, {f"x-{i}": "a" for i in range(200)}
    for fields in (large, many):
        assert usual.get("/version", headers=fields).status_code == 431
        assert wide.get("/version", headers=fields).status_code == 200
    assert wide.get("/version", headers={"x-large": "a" * 70_000}).status_code == 431
    assert wide.get("/version", headers={f"x-{i}": "a" for i in range(301)}).status_code == 431


def _heads(*words):
    made = server(*words)
    return {n: getattr(made, n) for n in ("h11_max_incomplete_event_size", "h11_max_header_count")}


@pytest.mark.parametrize("words", [["--h11-max-incomplete-event-size", "10"], ["--h11-max-header-count", "0"]])
def test_heads_of_no_sensible_size_are_refused(words):
    with pytest.raises(ConfigError, match=words[0]):
        server(*words)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_has_the_times_of_its_request_where_asked_for(start, stream):
    running = start(enable_per_request_metrics=True)
    for path, said in ((TEXT, {"prompt": "ab"}), (CHAT, {"messages": [{"role": "user", "content": "ab"}]})):
        for n, times in ((1, [500.0, 1000.0, 500.0, 1000 / 3, 4 / 1.5]), (2, None)):
            body = {**said, "max_tokens": 4, "n": n, "stream": stream}
            if stream:
                lines = running.post(path, {**body, "stream_options": {"include_usage": True}}).text.split("\n\n")
                assert not any('"metrics"' in line for line in lines[:-3])
                found = json.loads(lines[-3].removeprefix("data: "))["metrics"]
            else:
                found = running.post(path, body).json()["metrics"]
            assert found == times or list(found.values()) == pytest.approx(times)
    assert '"metrics"' not in start().post(TEXT, {"prompt": "ab", "max_tokens": 4}).text


@pytest.mark.slow
def test_a_silent_stream_says_that_it_lives(start):
    running = start(FakeEngine(delay=0.2), sse_keep_alive_interval=0.02)
    body = {"prompt": "ab", "max_tokens": 3, "stream": True}
    text = running.post(TEXT, body).text
    assert text.startswith(": keep-alive\n\n")
    assert text.count(": keep-alive") >= 3
    words = [json.loads(p[6:])["choices"][0]["text"] for p in text.split("\n\n") if p.startswith("data: {")]
    assert "".join(words) == running.post(TEXT, {**body, "stream": False}).json()["choices"][0]["text"]
    assert text.endswith("data: [DONE]\n\n")
    failed = running.post(TEXT, {**body, "prompt": "!fail"})
    assert (failed.status_code, "it broke" in failed.text) == (200, True)
    assert not running.engine.running
    running.engine.delay = 60
    with running.http.stream("POST", TEXT, json=body) as answer:
        next(answer.iter_text())
    deadline = time.monotonic() + 40
    while running.engine.running:
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.02)
    assert len(running.engine.aborted) == 1
