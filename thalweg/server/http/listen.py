"""The listening socket: bound before anything costly, so that whoever asks for a taken port learns it now."""

from __future__ import annotations

import contextlib
import resource
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from thalweg.errors import ConfigError
from thalweg.server.http.crowd import MOST_PROBES
from thalweg.server.settings import ServerSettings

SEND_BUFFER = 128 * 1024
"""Bytes the system buffers for a slow reader. Further bytes wait in this process, bounded and counted."""
SPARE_FILES = 128 + MOST_PROBES
"""Descriptors kept back from connections: for probes beyond the limit, and for everything else."""
MOST_CONNECTIONS = 8192


def connection_limit() -> int:
    """How many connections the process can hold, after raising its own limit as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + SPARE_FILES
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(16, min(MOST_CONNECTIONS, soft - SPARE_FILES))


@contextlib.contextmanager
def listen_all(settings: ServerSettings) -> Iterator[list[socket.socket]]:
    """The sockets of a server: that of its routes, and one for `metrics_port`. A port in use fails here."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(listening(settings))]
        if (port := settings.metrics_port) is not None:
            sockets.append(stack.enter_context(_tcp(settings.host, port, "--metrics-port")))
            sockets[-1].listen(128)
            sockets[-1].setblocking(False)
        yield sockets


@contextlib.contextmanager
def listening(settings: ServerSettings) -> Iterator[socket.socket]:
    """A bound, listening socket. A port in use fails here."""
    sock = _unix(settings.uds) if settings.uds else _tcp(settings.host, settings.port)
    ours = _identity(settings.uds)
    try:
        with sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            sock.listen(2048)
            sock.setblocking(False)
            yield sock
    finally:
        if settings.uds and ours == _identity(settings.uds):  # by now the name may be another server's
            Path(settings.uds).unlink(missing_ok=True)


def _identity(path: str | None) -> tuple[int, int] | None:
    """Which file lies at `path`. None: none."""
    if path is None:
        return None
    try:
        found = Path(path).lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _tcp(host: str, port: int, flag: str = "--port") -> socket.socket:
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
            f"{flag}: cannot listen on {host}:{port}: {e.strerror}; stop its user, or choose another with {flag}"
            + (" (0: any)" if flag == "--port" else "")
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
            Path(path).unlink()  # left behind by an ended server
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


def url(settings: ServerSettings, sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http{'s' if settings.ssl_certfile else ''}://{f'[{host}]' if ':' in host else host}:{port}"
