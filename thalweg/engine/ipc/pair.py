"""The one module that makes sockets between our own processes: unnamed pairs, of which a child inherits one end."""

from __future__ import annotations

import socket

End = socket.socket


def pair() -> tuple[End, End]:
    """Two connected ends: one for here, one for a child to inherit. No other process can connect, there is no name to protect
    or to clean up, and each end learns when the other is gone."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
