"""Proofs over a new connection that both sides have one secret. The secret is not sent, and a proof cannot be used again.

The listener sends a nonce. The guest answers with a nonce and an HMAC of both, and gets an HMAC of both in return.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
from typing import Protocol

NONCE_BYTES = 32
"""Bytes of a nonce, and of a proof."""
PIECE = 1 << 20


class StreamSocket(Protocol):
    """The part of a socket that is needed here."""

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...


def check_guest(sock: StreamSocket, secret: bytes, purpose: bytes) -> bool:
    """Whether the process that connected has the secret. It then gets the listener's proof, and zeros otherwise: it learns
    that the secrets differ. purpose: of this listener, so that no proof holds at another. OSError if the guest ends."""
    mine = secrets.token_bytes(NONCE_BYTES)
    sock.sendall(mine)
    theirs, proof = receive_exactly(sock, NONCE_BYTES), receive_exactly(sock, NONCE_BYTES)
    if not hmac.compare_digest(proof, _prove(secret, purpose, b"guest", mine, theirs)):
        with contextlib.suppress(OSError):
            sock.sendall(bytes(NONCE_BYTES))
        return False
    sock.sendall(_prove(secret, purpose, b"listener", mine, theirs))
    return True


def check_listener(sock: StreamSocket, secret: bytes, purpose: bytes) -> bool:
    """Whether the listener that this process connected to has the secret. OSError if it ends."""
    theirs, mine = receive_exactly(sock, NONCE_BYTES), secrets.token_bytes(NONCE_BYTES)
    sock.sendall(mine + _prove(secret, purpose, b"guest", theirs, mine))
    return hmac.compare_digest(receive_exactly(sock, NONCE_BYTES), _prove(secret, purpose, b"listener", theirs, mine))


def receive_exactly(sock: StreamSocket, size: int) -> bytes:
    """ConnectionResetError if the stream ends before."""
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(min(PIECE, size - len(data)))
        if not piece:
            raise ConnectionResetError("the other side has ended")
        data += piece
    return bytes(data)


def _prove(secret: bytes, purpose: bytes, side: bytes, listener: bytes, guest: bytes) -> bytes:
    """listener, guest: their nonces."""
    return hmac.digest(secret, b"%b %b " % (purpose, side) + listener + guest, "sha256")
