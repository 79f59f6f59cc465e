"""Running the server: the socket first, then the engine, then requests, then an orderly end. Knows no endpoint.

The port answers probes from the start, and everything else once the engine is up. On SIGTERM or SIGINT it accepts no new
requests, lets open ones finish for --shutdown-timeout seconds, ends the rest with an error and exits. A second signal skips the
wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

import uvicorn

from thalweg.async_llm import AsyncLLM, StatLogger
from thalweg.config import EngineArgs
from thalweg.engine.client.standby import Standby
from thalweg.errors import EngineDeadError
from thalweg.host import envs
from thalweg.server.app import Application
from thalweg.server.core.adapters import load_modules
from thalweg.server.http.certificates import refresh
from thalweg.server.http.connection import Connection, ConnectionLimits
from thalweg.server.http.crowd import ConnectionRegistry
from thalweg.server.http.listen import connection_limit, url
from thalweg.server.http.probes import probe_of
from thalweg.server.observe.metrics import EngineMetrics
from thalweg.server.observe.stats_line import StatsLine
from thalweg.server.observe.traces import Traces, exporter
from thalweg.server.router.dispatch import ModelRouter
from thalweg.server.router.models import ModelList
from thalweg.server.router.standby import StandbyReserve
from thalweg.server.settings import ServerSettings
from thalweg.template.chat import check_template
from thalweg.template.select import NAME

log = logging.getLogger(__name__)
FAREWELL = 0.4
"""Seconds for the last answers to reach their clients, once every request has ended."""
GIVE_UP = 0.5
"""Seconds for the engine, or for a load in progress, to end by itself."""
LOOK_EVERY = 0.005
"""Seconds between looks at whether the last connection is closed."""
HEALTH_EVERY = 1.0
"""Seconds between looks at whether the engine still lives."""
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers of TLS 1.2: forward secret, authenticated. TLS 1.3 has no others."""
FAILED_SECONDS = 30.0
"""Seconds that a server without an engine, lost for good, still answers probes before it ends."""


class _AbandonedError(Exception):
    """Something is still under way that cannot be interrupted (a thread that loads, an engine in a long step), and
    the process must not wait for it. It can do no harm: the engine dies with its parent, and files appear under their
    names only when whole."""


class Served(Protocol):
    """What a server serves: an engine, or a router of several."""

    async def check_health(self) -> None:
        """EngineDeadError if nothing can be served any more."""

    def shutdown(self) -> Awaitable[None]:
        """End every engine."""


Open = Callable[[Application, list[StatLogger], Traces | None], Awaitable[tuple[Served, list[str]]]]
"""Starts what is served, gives it to the application, and returns it with its names. Arguments: the loggers of an engine."""


def serve(args: EngineArgs, settings: ServerSettings, sockets: list[socket.socket], standby: Standby | None = None) -> int:
    """Serve on `sockets` (`listen_all`) until a signal. `standby` becomes the engine. Exit status: 0 stopped by a signal, 1 the
    engine died. ConfigError before any model work if the chat template does not parse."""

    async def open_engine(app: Application, loggers: list[StatLogger], _: Traces | None) -> tuple[Served, list[str]]:
        engine = await AsyncLLM.start(args, loggers=loggers, standby=standby)
        app.open(engine, await load_modules(engine, settings))
        return engine, [*engine.model_names, *app.serving.adapters.names()]

    return _serve(open_engine, settings, sockets, logs=not args.disable_log_stats)


def serve_models(
    listed: ModelList, settings: ServerSettings, sockets: list[socket.socket], standby: Standby | None = None
) -> int:
    """As `serve`, for several models. `standby` becomes the first engine."""
    devices = {entry.args.device for entry in listed.entries}

    async def open_router(app: Application, _: list[StatLogger], traces: Traces | None) -> tuple[Served, list[str]]:
        reserve = StandbyReserve(devices.pop() if len(devices) == 1 else None, standby)
        router = ModelRouter(listed, settings, app.lifecycle, app.traffic, reserve, traces)
        try:
            await router.start()
        except BaseException:
            await router.shutdown()
            raise
        app.open_models(router)
        reserve.refill()
        return router, router.names()

    return _serve(open_router, settings, sockets, logs=False)


def _serve(open_served: Open, settings: ServerSettings, sockets: list[socket.socket], logs: bool) -> int:
    """logs: the engine's metrics are the application's."""
    if settings.chat_template and not NAME.fullmatch(settings.chat_template):
        check_template(settings.chat_template)
    traces = Traces(exporter(settings.otlp_traces_endpoint)) if settings.otlp_traces_endpoint else None
    runner = asyncio.Runner(loop_factory=_loop_factory())
    try:
        status = runner.run(_main(open_served, settings, sockets, logs, traces))
    except _AbandonedError:
        if traces is not None:
            traces.close()
        logging.shutdown()
        os._exit(0)
    runner.close()
    if traces is not None:
        traces.close()
    return status


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:  # not made for this system
        return None
    return uvloop.new_event_loop


class _Signals:
    """SIGTERM and SIGINT: the first, and any after it."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self.first, self.second = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self.second if self.first.is_set() else self.first).set()
        self._app.lifecycle.drain()  # at once: readiness drops before anything else happens


async def _main(
    open_served: Open, settings: ServerSettings, sockets: list[socket.socket], logs: bool, traces: Traces | None
) -> int:
    metrics = EngineMetrics(settings.custom_histogram_buckets) if logs else None
    loggers: list[StatLogger] = [] if metrics is None else [metrics, StatsLine(envs.log_stats_seconds())]
    if traces is not None:
        loggers.append(traces)
    app = Application(settings, metrics, traces)
    loggers.append(app.recent)
    signals = _Signals(app)
    server = _Server(_config(app, settings), settings.header_timeout)
    running = asyncio.create_task(server.serve(sockets=sockets))
    refreshing = asyncio.create_task(_refresh_ssl(server, settings)) if settings.enable_ssl_refresh else None
    where = settings.uds or url(settings, sockets[0])
    log.info("listening on %s; the model is loading", where)
    try:
        served, names = await _unless_stopped(open_served(app, loggers, traces), signals.first)
        gc.freeze()  # objects that live as long as the process are not walked while it serves
        gc.enable()  # see cli/serve.py
        log.info("serving %s on %s", ", ".join(names), where)
        status = await _until_told(served, signals)
        await _drain(app, settings, signals)
        await _unless_late(served.shutdown())
        return status
    finally:
        if refreshing is not None:
            refreshing.cancel()
        await server.leave(running)


async def _refresh_ssl(server: uvicorn.Server, settings: ServerSettings) -> None:
    while server.config.ssl is None:  # made when the server begins to listen
        await asyncio.sleep(0.05)
    await refresh(server.config.ssl, settings)


async def _unless_stopped(work: Any, stop: asyncio.Event) -> Any:
    """The result of `work`. _AbandonedError if `stop` comes first."""
    task, reported = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, reported}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task}, timeout=GIVE_UP)
        log.info("stopped while loading")
        raise _AbandonedError
    finally:
        reported.cancel()


async def _unless_late(work: Any) -> None:
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=GIVE_UP)
    if not task.done():
        raise _AbandonedError
    task.result()


async def _until_told(engine: Served, signals: _Signals) -> int:
    """Returns when it is time to go: the exit status."""
    stopped, died = asyncio.create_task(signals.first.wait()), asyncio.create_task(_until_dead(engine))
    await asyncio.wait({stopped, died}, return_when=asyncio.FIRST_COMPLETED)
    status = 0
    if not stopped.done():
        status = 1
        log.error("the engine has died (%s); the server ends in %g seconds", died.result(), FAILED_SECONDS)
        await asyncio.wait({stopped}, timeout=FAILED_SECONDS)
    for task in (stopped, died):
        task.cancel()
    return status


async def _until_dead(engine: Served) -> str:
    while True:
        await asyncio.sleep(HEALTH_EVERY)
        try:
            await engine.check_health()
        except EngineDeadError as e:
            return str(e)


async def _drain(app: Application, settings: ServerSettings, signals: _Signals) -> None:
    """Accept no new requests, give open ones time, end the rest with an error."""
    life = app.lifecycle
    life.drain()
    if life.inside:
        log.info("stopping: %d open requests have %d seconds to finish", life.inside, settings.shutdown_timeout)
    empty, again = asyncio.create_task(life.empty()), asyncio.create_task(signals.second.wait())
    await asyncio.wait({empty, again}, timeout=settings.shutdown_timeout, return_when=asyncio.FIRST_COMPLETED)
    if life.inside:
        log.info("stopping: %d requests are cut", life.inside)
        await app.cut()
        await asyncio.wait({empty}, timeout=FAREWELL)
    for task in (empty, again):
        task.cancel()


class _Server(uvicorn.Server):
    """Signals are handled above, where the engine is ended too. It ends on `leave`, when its last connection is closed:
    uvicorn's own checks every tenth of a second."""

    def __init__(self, config: uvicorn.Config, handshake_seconds: float) -> None:
        super().__init__(config)
        self._handshake_seconds = handshake_seconds
        self._told = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's for sockets that listen, with a bound on TLS handshakes: before that no connection object exists."""
        await self.lifespan.startup()
        loop, config = asyncio.get_running_loop(), self.config

        def connection() -> asyncio.BaseProtocol:
            result: Any = config.http_protocol_class
            return result(config=config, server_state=self.server_state, app_state=self.lifespan.state)  # type: ignore[no-any-return]

        seconds = self._handshake_seconds if config.ssl else None
        self.servers = [
            await loop.create_server(
                connection, sock=sock, ssl=config.ssl, backlog=config.backlog, ssl_handshake_timeout=seconds
            )
            for sock in sockets or ()
        ]
        self.started = True

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # sets the date that answers carry
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), 1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no new connections, and end every open one. `leave` limits the time."""
        for listening in (*self.servers, *(sockets or ())):
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while (self.server_state.connections or self.server_state.tasks) and not self.force_exit:
            await asyncio.sleep(LOOK_EVERY)
        for server in self.servers:
            await server.wait_closed()
        await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def leave(self, running: asyncio.Task[None]) -> None:
        """Close every connection (their answers are out, or never will be) and end."""
        self.should_exit = True
        self._told.set()
        await asyncio.wait({running}, timeout=FAREWELL)
        for connection in list(self.server_state.connections):
            transport = connection.transport
            if transport is not None:
                transport.abort()
        self.force_exit = True
        await asyncio.wait({running}, timeout=GIVE_UP)


def _config(app: Any, s: ServerSettings) -> uvicorn.Config:
    quiet = {p.strip() for p in (s.disable_access_log_for_endpoints or "").split(",") if p.strip()}
    quiet.add("/page/state")  # an open page asks once a second
    logging.getLogger("uvicorn.access").addFilter(lambda record: not _is_of(record, quiet))
    trusted = s.forwarded_allow_ips or envs.forwarded_allow_ips()
    limits = ConnectionLimits(
        s.header_timeout, s.body_timeout, s.slow_client_timeout, ConnectionRegistry(connection_limit()),
        lambda path: bool(probe_of(path.removeprefix(s.root_path.rstrip("/")))),
        s.h11_max_incomplete_event_size, s.h11_max_header_count,
    )  # fmt: skip
    for read in (envs.audio_file_megabytes, envs.audio_seconds):  # fail now, not at the first audio request
        read()
    logged = uvicorn.config.LOGGING_CONFIG if s.log_config_file is None else None  # that file is in force already
    return uvicorn.Config(
        app,
        log_level=s.uvicorn_log_level,
        access_log=not s.disable_uvicorn_access_log,
        timeout_keep_alive=envs.keep_alive_seconds(),
        http=functools.partial(Connection, limits=limits),  # type: ignore[arg-type]
        ws="none",
        server_header=False,
        log_config=logged,
        ssl_keyfile=s.ssl_keyfile,
        ssl_certfile=s.ssl_certfile,
        ssl_ca_certs=s.ssl_ca_certs,
        ssl_cert_reqs=s.ssl_cert_reqs,
        ssl_ciphers=s.ssl_ciphers or CIPHERS,
        # Only hosts named by the operator are trusted: any other client could claim a new host, and with it a turn, per
        # request.
        proxy_headers=bool(trusted),
        forwarded_allow_ips=",".join(trusted),
    )


def _is_of(record: logging.LogRecord, paths: set[str]) -> bool:
    """Is this access log line (client, method, path, ...) about one of `paths`?"""
    args = record.args
    return isinstance(args, tuple) and len(args) > 2 and str(args[2]).split("?")[0] in paths
