"""A real uvicorn on loopback around a fake engine, on a thread of its own; it ends with the test."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jails
import openai
import pytest
from fake_engine import FakeEngine

from thalweg.server.app import make_app
from thalweg.server.observe.metrics import EngineMetrics
from thalweg.server.observe.traces import Traces
from thalweg.server.serve import _config as serving_config
from thalweg.server.serve import _loop_factory, _Server
from thalweg.server.settings import ServerSettings


@pytest.fixture(scope="module", autouse=True)
def _jails() -> Iterator[None]:
    with jails.shared():
        yield


class Running:
    """One server. `engine` is the fake behind it; `client()` an official OpenAI client."""

    def __init__(self, engine: FakeEngine, settings: ServerSettings, traces: Traces | None = None) -> None:
        self.engine, self.settings, self.traces = engine, settings, traces
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.sockets = [self.sock]
        if settings.metrics_port:
            self.sockets.append(socket.create_server(("127.0.0.1", settings.metrics_port)))
        self.url = f"http://127.0.0.1:{self.sock.getsockname()[1]}"
        self.http = httpx.Client(base_url=self.url, timeout=60)
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()
        assert self._up.wait(60), "the server did not start"

    def _main(self) -> None:
        metrics = EngineMetrics()
        app = make_app(self.engine, self.settings, metrics, self.traces)  # type: ignore[arg-type]
        self.engine.loggers = (metrics, app.recent) if self.traces is None else (metrics, app.recent, self.traces)
        self.app = app
        config = serving_config(app, self.settings)

        async def main() -> None:
            self._loop, self._told = asyncio.get_running_loop(), asyncio.Event()
            self._server = _Server(config, self.settings.header_timeout)
            task = asyncio.create_task(self._server.serve(sockets=self.sockets))
            while not self._server.started and not task.done():
                await asyncio.sleep(0.001)
            self._up.set()
            await self._told.wait()
            await app.serving.cut()
            await self._server.leave(task)

        with asyncio.Runner(loop_factory=_loop_factory()) as runner:  # the event loop that serves, not another
            runner.run(main())

    def stop(self) -> None:
        self.http.close()
        self._loop.call_soon_threadsafe(self._told.set)
        self._thread.join(60)
        for sock in self.sockets:
            sock.close()
        self.engine.chat.close()
        assert not self._thread.is_alive(), "the server did not stop"

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0, timeout=60)

    def aclient(self, key: str = "none") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0, timeout=60)

    def post(self, path: str, body: object = None, **kwargs: Any) -> httpx.Response:
        return self.http.post(path, **({} if body is None else {"json": body}), **kwargs)

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        return self.http.get(path, **kwargs)


@pytest.fixture(autouse=True)
def _fresh_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """/metrics tells what is so now. `test_metrics.py` tests what it does otherwise."""
    monkeypatch.setattr("thalweg.server.operators.metrics.FRESH_SECONDS", 0.0)


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What the server logs from now on, access lines included."""
    lines: list[str] = []
    form = logging.Formatter()

    def see(record: logging.LogRecord) -> bool:
        lines.append(form.format(record))
        return True

    # Filters, for uvicorn resets handlers when a server starts.
    loggers = [logging.getLogger(n) for n in ("uvicorn.access", "uvicorn.error", "thalweg.server.errors")]
    for logger in loggers:
        logger.addFilter(see)
    yield lines
    for logger in loggers:
        logger.removeFilter(see)


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """start(engine=..., **settings) -> Running; all are stopped after the test."""
    made: list[Running] = []

    def make(engine: FakeEngine | None = None, **settings: object) -> Running:
        made.append(Running(engine or FakeEngine(), ServerSettings(**settings)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for running in made:
        running.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """One server with default settings for a module's tests."""
    running = Running(FakeEngine(), ServerSettings())
    yield running
    running.stop()
