"""How processes of other machines join an engine: over TCP, with a first message that says which rank they offer to be."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from thalweg.engine.ipc.codec import HEADER, Codec, FrameError
from thalweg.engine.ipc.pair import End
from thalweg.engine.ipc.port import kept_port, listen
from thalweg.errors import ConfigError
from thalweg.host.handshake import check_guest, check_listener, receive_exactly

log = logging.getLogger(__name__)

MOST_GREETING = 64 << 10
"""Bytes. A longer first message is refused: any process that reaches the port may send one."""
GREETING_SECONDS = 5.0
"""Seconds in which a process that connected must have sent its first message."""
SILENT_SECONDS = 30
"""Seconds after which a connection whose machine no longer answers counts as closed."""
AGAIN_SECONDS = 0.2
"""Between two attempts to connect."""
SIOCGIFADDR = 0x8915

PURPOSE = b"join an engine"


class StrangerError(Exception):
    """The process at the other side of a door has another secret."""


class UnreachableError(ConnectionError):
    """No process listens at the address, or it ended while this one waited to join."""


@contextlib.contextmanager
def opening(host: str, port: int, secret: bytes = b"") -> Iterator[Door]:
    """The port that this process keeps, or one opened for this block. ConfigError as of `listen`."""
    if (kept := kept_port()) is not None:
        yield Door(kept, secret)
        return
    with listen(host, port) as sock:
        yield Door(sock, secret)


class Door:
    """A listening socket, at which processes introduce themselves by one message. Both sides first prove that they have the
    secret (`host.handshake`)."""

    def __init__(self, sock: End, secret: bytes = b"") -> None:
        self._sock, self._secret = sock, secret
        self.turned_away = ""
        """The last process with another secret, in words. Empty if there was none."""

    @property
    def port(self) -> int:
        return int(self._sock.getsockname()[1])

    @property
    def host(self) -> str:
        return str(self._sock.getsockname()[0])

    @property
    def interface(self) -> str | None:
        return interface_of(self._sock)

    def admit(self, codec: Codec[Any], until: float) -> tuple[End, str, Any] | None:
        """The next process that connects: (its connection, its address, its first message). None at time.monotonic()
        `until`, and for one that sends nothing or something else, or has another secret."""
        left = until - time.monotonic()
        if left <= 0:
            return None
        self._sock.settimeout(left)
        try:
            sock, where = self._sock.accept()
        except TimeoutError:
            return None
        try:
            sock.settimeout(GREETING_SECONDS)
            self._check(sock, str(where[0]))
            message = _receive(sock, codec)
        except (OSError, FrameError, StrangerError):
            sock.close()
            return None
        return _tune(sock), str(where[0]), message

    def _check(self, sock: End, host: str) -> None:
        if not check_guest(sock, self._secret, PURPOSE):
            self.turned_away = f"a process on {host} that wanted to join was turned away: it has another secret (node_secret)"
            log.warning("%s", self.turned_away)
            raise StrangerError


def connect(host: str, port: int, until: float, patient: bool) -> End:
    """A connection to a door. patient: try until time.monotonic() `until`. Otherwise one refusal is the end.
    UnreachableError says which. ConfigError for an unknown host."""
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=max(0.1, min(10.0, until - time.monotonic())))
            return _tune(sock)
        except socket.gaierror as e:
            why: OSError = e
        except ConnectionRefusedError as e:
            if not patient:
                raise UnreachableError(f"{host}:{port} no longer listens") from None
            why = e
        except OSError as e:
            why = e
        if time.monotonic() + AGAIN_SECONDS > until:
            raise UnreachableError(f"{host}:{port} did not answer in time: {why.strerror or why}") from None
        time.sleep(AGAIN_SECONDS)


def introduce(sock: End, codec: Codec[Any], message: Any, until: float, secret: bytes = b"") -> Any:
    """Send the first message to a door, and wait for the answer. UnreachableError if the other side ends, or `until` passes.
    ConfigError if it has another secret."""
    try:
        sock.settimeout(max(0.1, until - time.monotonic()))
        if not check_listener(sock, secret, PURPOSE):
            raise ConfigError("node_secret: machine 0 has another secret; give all machines the same file")
        sock.sendall(codec.encode(message))
        answer = _receive(sock, codec)
        sock.settimeout(None)
    except TimeoutError:
        raise UnreachableError("it did not answer in time") from None
    except OSError as e:
        raise UnreachableError(f"it ended: {e.strerror or e}") from None
    return answer


def has_ended(sock: End) -> bool:
    """Has the other side of a connection closed it? Reads nothing, so another process may do that."""
    poll = select.poll()
    poll.register(sock, getattr(select, "POLLRDHUP", 0))
    return bool(poll.poll(0))


def interface_of(sock: End) -> str | None:
    """The network interface with the local address of a socket. None: unknown."""
    if sock.family != socket.AF_INET:
        return None
    host = sock.getsockname()[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asks:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                found = fcntl.ioctl(asks.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(found[20:24]) == host:
                    return name
    return None


def interface_at(descriptor: int) -> str | None:
    """`interface_of` the socket of an open descriptor."""
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        return interface_of(sock)


def free_port(host: str) -> int:
    """A port that no process of this machine uses now."""
    with listen(host, 0) as sock:
        return int(sock.getsockname()[1])


def _tune(sock: End) -> End:
    """Small messages leave at once. A machine that is gone is noticed."""
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", SILENT_SECONDS // 5 - 1)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_SECONDS * 1000)
    return sock


def _receive(sock: End, codec: Codec[Any]) -> Any:
    """One message. OSError at the end of the stream."""
    (length,) = HEADER.unpack(receive_exactly(sock, HEADER.size))
    if length > MOST_GREETING:
        raise FrameError(f"a first message of {length} bytes; the limit is {MOST_GREETING}")
    return codec.decode(receive_exactly(sock, length))
