"""Running the server: the socket first, then the engine, then requests, then an orderly end. Knows no endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from thalweg import envs
from thalweg.async_llm import AsyncLLM, StatLogger
from thalweg.config import EngineArgs
from thalweg.errors import ConfigError, EngineDeadError
from thalweg.server.app import make_app
from thalweg.server.metrics import EngineMetrics
from thalweg.server.settings import ServerSettings
from thalweg.server.stats_line import StatsLine
from thalweg.text.template import ChatTemplate

log = logging.getLogger(__name__)
FAREWELL = 3
"""Seconds for the last answers to reach their clients, once every request has ended."""
HEALTH_EVERY = 1.0
"""Seconds between looks at whether the engine still lives."""


def serve(args: EngineArgs, settings: ServerSettings) -> int:
    """Serve until told to stop. Exit status: 0 stopped by a signal, 1 the engine died. ConfigError before any model work
    if the address is taken or the chat template does not parse."""
    if settings.chat_template:
        ChatTemplate(settings.chat_template)
    with _listen(settings) as sock, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_main(args, settings, sock))


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:  # not made for this system
        return None
    return uvloop.new_event_loop


@contextlib.contextmanager
def _listen(settings: ServerSettings) -> Iterator[socket.socket]:
    """A bound, listening socket: whoever asks for a port that is taken learns it now."""
    sock = _unix(settings.uds) if settings.uds else _tcp(settings.host, settings.port)
    try:
        with sock:
            sock.listen(2048)
            sock.setblocking(False)
            yield sock
    finally:
        if settings.uds:
            Path(settings.uds).unlink(missing_ok=True)


def _tcp(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as e:
        raise ConfigError(f"--host: {host!r} is not an address of this machine: {e}") from None
    sock = socket.socket(family, kind, proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as e:
        sock.close()
        raise ConfigError(
            f"--port: cannot listen on {host}:{port}: {e.strerror}; stop what uses it, or choose another with --port (0: any)"
        ) from None
    return sock


def _unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if Path(path).exists():
            if not stat.S_ISSOCK(Path(path).stat().st_mode):
                raise ConfigError(f"--uds: {path} exists and is not a socket; choose another path")
            with contextlib.suppress(ConnectionRefusedError):
                sock.connect(path)
                raise ConfigError(f"--uds: a server already listens on {path}; stop it, or choose another path")
            Path(path).unlink()  # left behind by a server that is gone
            sock.close()
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(path)
        Path(path).chmod(0o660)
    except OSError as e:
        sock.close()
        raise ConfigError(f"--uds: cannot listen on {path}: {e.strerror or e}") from None
    except ConfigError:
        sock.close()
        raise
    return sock


async def _main(args: EngineArgs, settings: ServerSettings, sock: socket.socket) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    metrics = None if args.disable_log_stats else EngineMetrics()
    loggers: list[StatLogger] = [] if metrics is None else [metrics, StatsLine(envs.log_stats_seconds())]
    engine = await _unless_stopped(AsyncLLM.start(args, loggers=loggers), stop)
    if engine is None:
        return 0
    try:
        app = make_app(engine, settings, metrics)
        log.info("serving %s on %s", ", ".join(engine.model_names), settings.uds or _url(settings, sock))
        return await _serve(app, settings, sock, engine, stop)
    finally:
        await engine.shutdown()


async def _unless_stopped(work: Any, stop: asyncio.Event) -> Any:
    """The result of `work`; None if `stop` comes first (then `work` is cancelled)."""
    task, told = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        told.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


class _Server(uvicorn.Server):
    """Signals are handled in _main, where the engine is ended too."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(app: Any, settings: ServerSettings, sock: socket.socket, engine: AsyncLLM, stop: asyncio.Event) -> int:
    server = _Server(_config(app, settings))
    running = asyncio.create_task(server.serve(sockets=[sock]))
    stopped = asyncio.create_task(stop.wait())
    died = asyncio.create_task(_until_dead(engine))
    await asyncio.wait({running, stopped, died}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    if stopped.done():
        stop.clear()
        again = asyncio.create_task(stop.wait())
        # Open requests may go on for a while, unless told to stop a second time.
        await asyncio.wait({running, again}, timeout=settings.shutdown_timeout, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if not died.done():
            await app.state.serving.abort_all()
    elif died.done():
        log.error("the engine has died (%s); the server ends", died.result())
    await running
    dead = died.done()
    for task in (stopped, died):
        task.cancel()
    return 1 if dead else 0


async def _until_dead(engine: AsyncLLM) -> str:
    while True:
        await asyncio.sleep(HEALTH_EVERY)
        try:
            await engine.check_health()
        except EngineDeadError as e:
            return str(e)


def _config(app: Any, s: ServerSettings) -> uvicorn.Config:
    quiet = {p.strip() for p in (s.disable_access_log_for_endpoints or "").split(",") if p.strip()}
    if quiet:
        logging.getLogger("uvicorn.access").addFilter(lambda record: not _is_of(record, quiet))
    return uvicorn.Config(
        app,
        log_level=s.uvicorn_log_level,
        access_log=not s.disable_uvicorn_access_log,
        timeout_keep_alive=envs.keep_alive_seconds(),
        timeout_graceful_shutdown=s.shutdown_timeout + FAREWELL,
        http="httptools",
        ws="none",
        server_header=False,
        ssl_keyfile=s.ssl_keyfile,
        ssl_certfile=s.ssl_certfile,
        ssl_ca_certs=s.ssl_ca_certs,
        ssl_cert_reqs=s.ssl_cert_reqs,
        ssl_ciphers=s.ssl_ciphers or "TLSv1",
    )


def _is_of(record: logging.LogRecord, paths: set[str]) -> bool:
    """Is this access log line (client, method, path, ...) about one of `paths`?"""
    args = record.args
    return isinstance(args, tuple) and len(args) > 2 and str(args[2]).split("?")[0] in paths


def _url(settings: ServerSettings, sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http{'s' if settings.ssl_certfile else ''}://{f'[{host}]' if ':' in host else host}:{port}"
