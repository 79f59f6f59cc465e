"""Connections of stores over TCP."""

from __future__ import annotations

import socket
from typing import Any

CONNECT_SECONDS = 2.0


def split_address(address: Any) -> tuple[str, int] | None:
    """(host, port) of "HOST:PORT". None for anything else."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    return (host.strip("[]"), int(port)) if host and port.isdigit() and 0 < int(port) < 1 << 16 else None


def check_listens(address: tuple[str, int]) -> None:
    """OSError if no process listens there."""
    socket.create_connection(address, CONNECT_SECONDS).close()
