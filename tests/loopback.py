"""Ports of loopback that a test names to a server before the server listens."""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
FIRST, EACH = 18_000, 1_500
"""Ports of the first worker of pytest-xdist, and how many each has."""
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_numbers = itertools.count(os.getpid())


def free_port() -> int:
    """Nobody listens there. The system gives such ports to nobody: a connection of another test, which gets a port while it is
    made, takes none of them. Each worker has other ports."""
    first = FIRST + WORKER % 8 * EACH
    if RANGE.exists():
        assert first + EACH <= int(RANGE.read_text().split()[0]), "the system gives these ports to connections"
    for _ in range(EACH):
        port = first + next(_numbers) % EACH
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
