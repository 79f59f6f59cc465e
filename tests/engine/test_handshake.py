"""Proofs of one secret between two processes: both sides learn whether the other has it, and nothing else."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from thalweg.host.handshake import NONCE_BYTES, check_guest, check_listener

SECRET = b"a secret of sixteen bytes or more"


def meet(guest: tuple[bytes, bytes], listener: tuple[bytes, bytes]) -> tuple[bool, bool]:
    """What (guest, listener) find. Each has a secret and a purpose."""
    one, other = socket.socketpair()
    with one, other, ThreadPoolExecutor(1) as pool:
        one.settimeout(5)
        other.settimeout(5)
        heard = pool.submit(check_guest, other, *listener)
        return check_listener(one, *guest), heard.result()


@pytest.mark.parametrize(
    ("listener", "agree"),
    [((SECRET, b"blocks"), True), ((SECRET + b"-", b"blocks"), False), ((SECRET, b"engine"), False), ((b"", b"blocks"), False)],
)
def test_both_sides_agree_on_a_secret_and_a_purpose(listener: tuple[bytes, bytes], agree: bool) -> None:
    assert meet((SECRET, b"blocks"), listener) == (agree, agree)


def test_a_listener_cannot_return_what_the_guest_sent() -> None:
    one, other = socket.socketpair()
    with one, other, ThreadPoolExecutor(1) as pool:
        one.settimeout(5)
        found = pool.submit(check_listener, one, SECRET, b"blocks")
        other.sendall(bytes(NONCE_BYTES))
        sent = other.recv(2 * NONCE_BYTES, socket.MSG_WAITALL)
        other.sendall(sent[NONCE_BYTES:])  # the guest's own proof
        assert not found.result()


def test_an_end_in_between_is_an_error() -> None:
    one, other = socket.socketpair()
    with one:
        other.sendall(bytes(NONCE_BYTES - 1))
        other.close()
        with pytest.raises(OSError, match=r"ended|reset|pipe"):
            check_listener(one, SECRET, b"blocks")
