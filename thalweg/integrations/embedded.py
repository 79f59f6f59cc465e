"""The engine and its HTTP application inside another program's process: all routes, without a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self

from starlette.types import ASGIApp, Message

from thalweg.async_llm import AsyncLLM
from thalweg.config import EngineArgs
from thalweg.errors import ConfigError
from thalweg.server.app import Application
from thalweg.server.core.adapters import load_modules
from thalweg.server.observe.metrics import EngineMetrics
from thalweg.server.settings import ServerSettings

MOST_UNREAD = 16
"""Parts of an answer that wait for their reader. The application waits beyond that."""
GRACE = 5.0
"""Seconds for open requests to end with an error before the engine ends."""


def split_options(options: Mapping[str, Any]) -> tuple[EngineArgs, ServerSettings]:
    """Flags by their names with `_` for `-`, divided into those of the engine and those of the server. ConfigError names
    each unknown one."""
    engine, server = set(EngineArgs.__struct_fields__), set(ServerSettings.__struct_fields__)
    unknown = sorted(set(options) - engine - server)
    if unknown:
        raise ConfigError(f"unknown options: {', '.join(unknown)}; `thalweg serve --help` lists the flags")
    return (
        EngineArgs(**{name: value for name, value in options.items() if name in engine}),
        ServerSettings(**{name: value for name, value in options.items() if name in server}),
    )


class EmbeddedServer:
    """A started engine with the application that serves it. Make one with `start`, and end it with `stop`."""

    def __init__(self, engine: AsyncLLM, app: Application) -> None:
        self.engine, self.app = engine, app

    @classmethod
    async def start(cls, options: Mapping[str, Any]) -> Self:
        """Ready to serve. options: the flags of `thalweg serve`. Errors are those of `split_options` and `AsyncLLM.start`."""
        args, settings = split_options(options)
        metrics = None if args.disable_log_stats else EngineMetrics(settings.custom_histogram_buckets)
        app = Application(settings, metrics)
        engine = await AsyncLLM.start(args, loggers=[*([] if metrics is None else [metrics]), app.recent])
        try:
            app.open(engine, await load_modules(engine, settings))
        except BaseException:
            await engine.shutdown()
            raise
        return cls(engine, app)

    async def stop(self) -> None:
        """Accept no new requests, end open ones with an error, then end the engine."""
        self.app.lifecycle.drain()
        if self.app.lifecycle.inside:
            await self.app.serving.cut()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.app.lifecycle.empty(), GRACE)
        await self.engine.shutdown()


class InProcessRequest:
    """One POST to an ASGI application in this process: `async with InProcessRequest(...) as answer`. Leaving the block early
    aborts the request, as a client that disconnects does."""

    status: int
    headers: dict[str, str]
    """By lower-case name."""

    def __init__(self, app: ASGIApp, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        fields = {"content-type": "application/json", **{k.lower(): v for k, v in headers.items()}}
        fields.pop("transfer-encoding", None)
        fields |= {"content-length": str(len(body)), "host": "localhost"}
        self._scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": [(k.encode("latin-1"), v.encode("latin-1")) for k, v in fields.items()],
            "client": ("127.0.0.1", 0), "server": ("localhost", 80),
        }  # fmt: skip
        self._app, self._body = app, body
        self._parts: asyncio.Queue[Message | None] = asyncio.Queue(MOST_UNREAD)
        self._sent, self._left = False, asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        try:
            first = await self._parts.get()
            if first is None:
                self._task.result()
                raise RuntimeError("the application returned without an answer")
        except BaseException:
            await self._end()
            raise
        self.status = first["status"]
        self.headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in first.get("headers", ())}
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The parts of the body as the application sends them."""
        while True:
            part = await self._parts.get()
            if part is None:
                self._task.result()
                return
            if part.get("body"):
                yield part["body"]
            if not part.get("more_body"):
                return

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._parts.put)
        finally:
            if not self._left.is_set():
                await self._parts.put(None)

    async def _receive(self) -> Message:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _end(self) -> None:
        self._left.set()
        self._task.cancel()
        await asyncio.wait([self._task])
