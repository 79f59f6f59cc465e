"""The TCP port where ranks of other machines join an engine. Imports next to nothing.

The process that users see (the server, or the program with `LLM`) opens it and keeps it for life. Engine processes inherit it,
one after another. Whoever waits to join therefore waits through an engine's restart, and learns at once when the server ends.
"""

from __future__ import annotations

import socket

from thalweg.engine.ipc.pair import End
from thalweg.errors import ConfigError

_kept: dict[tuple[str, int], End] = {}
"""The one that this process keeps, by its address. Of an inherited one the address is not known."""


def keep_port(host: str, port: int) -> None:
    """Open the port, and keep it until `release_port`. Does nothing if this process has it. ConfigError as of `listen`."""
    if (host, port) not in _kept:
        release_port()
        _kept[host, port] = listen(host, port)


def release_port() -> None:
    """Close it. Processes that wait there learn that this one is done."""
    while _kept:
        _kept.popitem()[1].close()


def adopt_port(descriptor: int) -> None:
    """Keep the port of the process that started this one."""
    _kept["", 0] = socket.socket(fileno=descriptor)


def kept_port() -> End | None:
    """The listening socket that this process keeps."""
    return next(iter(_kept.values()), None)


def inheritable() -> tuple[int, ...]:
    """Its descriptor, which an engine process must inherit."""
    return tuple(sock.fileno() for sock in _kept.values())


def listen(host: str, port: int) -> End:
    """A listening socket. port 0: any free one. ConfigError if this machine has no such address, or the port is in use."""
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((str(where[0]), int(where[1])), family=family, backlog=128)
    except socket.gaierror as e:
        raise ConfigError(f"master_addr: {host!r} has no address: {e.strerror}") from None
    except OSError as e:
        raise ConfigError(f"master_addr, master_port: cannot listen at {host}:{port}: {e.strerror}") from None
