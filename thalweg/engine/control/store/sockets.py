"""Connections of stores over TCP."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

from thalweg.host.handshake import check_guest, check_listener, receive_exactly

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
MOST_FRAME = 64 << 20
"""Bytes."""
PURPOSE = b"read blocks"


def split_address(address: Any) -> tuple[str, int] | None:
    """(host, port) of "HOST:PORT". None for anything else."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    return (host.strip("[]"), int(port)) if host and port.isdigit() and 0 < int(port) < 1 << 16 else None


def check_listens(address: tuple[str, int]) -> None:
    """OSError if no process listens there."""
    socket.create_connection(address, CONNECT_SECONDS).close()


def connect(address: tuple[str, int], secret: bytes, seconds: float) -> FrameSocket:
    """A connection to a `Listener`. OSError if nothing listens, or it has another secret. seconds: of each call."""
    sock = socket.create_connection(address, seconds)
    try:
        if not check_listener(sock, secret, PURPOSE):
            raise OSError(f"the process at {address[0]}:{address[1]} has another secret")
    except BaseException:
        sock.close()
        raise
    return FrameSocket(sock)


class FrameSocket:
    """Frames over TCP: four bytes with the length, and the contents."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock

    def send(self, frame: bytes) -> None:
        self._sock.sendall(len(frame).to_bytes(4, "big") + frame)

    def receive(self) -> bytes:
        """OSError if the other side has ended."""
        size = int.from_bytes(receive_exactly(self._sock, 4), "big")
        if size > MOST_FRAME:
            raise OSError(f"a frame of {size} bytes, more than {MOST_FRAME}")
        return receive_exactly(self._sock, size)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


class Listener:
    """Answers the frames of processes that know the secret, on a thread for each."""

    def __init__(self, address: tuple[str, int], secret: bytes, answer: Callable[[bytes], bytes]) -> None:
        """answer: from the frame of a question to that of its answer. OSError if the address is not free."""
        self._sock = socket.create_server(address)
        self._secret, self._answer = secret, answer
        self._open = set[FrameSocket]()
        threading.Thread(target=self._accept, name="kv store: listen", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        for connection in list(self._open):
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(sock,), name="kv store: peer", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        connection = FrameSocket(sock)
        self._open.add(connection)
        try:
            sock.settimeout(CONNECT_SECONDS)
            if not check_guest(sock, self._secret, PURPOSE):
                logger.warning("kv store: a process with another secret was turned away")
                return
            sock.settimeout(None)
            while True:
                connection.send(self._answer(connection.receive()))
        except (OSError, ValueError) as e:  # it has ended, or sends something else
            logger.debug("kv store: a peer left: %s", e)
        finally:
            self._open.discard(connection)
            connection.close()
