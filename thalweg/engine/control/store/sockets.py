"""Connections of stores over TCP."""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 2.0
MOST_FRAME = 64 << 20
"""Bytes."""
NONCE = 32
"""Bytes of a nonce, and of a proof."""


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
        mine = secrets.token_bytes(NONCE)
        theirs = _receive_exactly(sock, NONCE)
        sock.sendall(mine + _prove(secret, b"connects", theirs, mine))
        if not hmac.compare_digest(_receive_exactly(sock, NONCE), _prove(secret, b"listens", theirs, mine)):
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
        size = int.from_bytes(_receive_exactly(self._sock, 4), "big")
        if size > MOST_FRAME:
            raise OSError(f"a frame of {size} bytes, more than {MOST_FRAME}")
        return _receive_exactly(self._sock, size)

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
            mine = secrets.token_bytes(NONCE)
            sock.sendall(mine)
            theirs, proof = _receive_exactly(sock, NONCE), _receive_exactly(sock, NONCE)
            if not hmac.compare_digest(proof, _prove(self._secret, b"connects", mine, theirs)):
                logger.warning("kv store: a process with another secret was turned away")
                return
            sock.sendall(_prove(self._secret, b"listens", mine, theirs))
            sock.settimeout(None)
            while True:
                connection.send(self._answer(connection.receive()))
        except (OSError, ValueError) as e:  # it has ended, or sends something else
            logger.debug("kv store: a peer left: %s", e)
        finally:
            self._open.discard(connection)
            connection.close()


def _prove(secret: bytes, side: bytes, listener: bytes, guest: bytes) -> bytes:
    """32 bytes that only a process with the secret can compute. listener, guest: their nonces."""
    return hmac.digest(secret, side + listener + guest, "sha256")


def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = sock.recv(min(1 << 20, size - len(data)))
        if not part:
            raise ConnectionResetError("the other side has ended")
        data += part
    return bytes(data)
