"""Asks health routes at a fixed rate from a process of its own, so that a busy client or server shows only in the answers.

    python probe.py PORT INTERVAL PATH...

Until its input ends. Then it prints one JSON list of [path, start (monotonic seconds), seconds taken, status; 0 = no answer].
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

PATIENCE = 5.0


class Prober:
    """One kept-alive connection, opened again when the server closes it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sock: socket.socket | None = None

    def ask(self, path: str) -> int:
        for fresh in (self._sock is None, True):
            try:
                return self._ask(path)
            except OSError:
                self._close()
                if fresh:
                    return 0
        return 0

    def _ask(self, path: str) -> int:
        if self._sock is None:
            self._sock = socket.create_connection(("127.0.0.1", self._port), PATIENCE)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        said = b""
        while b"\r\n\r\n" not in said:
            piece = self._sock.recv(65536)
            if not piece:
                raise ConnectionResetError
            said += piece
        top, _, body = said.partition(b"\r\n\r\n")
        headers = {k.strip().lower(): v.strip() for k, _, v in (h.partition(b":") for h in top.split(b"\r\n")[1:])}
        missing = int(headers.get(b"content-length", b"0")) - len(body)
        while missing > 0:
            piece = self._sock.recv(65536)
            if not piece:
                raise ConnectionResetError
            missing -= len(piece)
        if headers.get(b"connection", b"").lower() == b"close":
            self._close()
        return int(top.split()[1])

    def _close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None


def main() -> None:
    port, interval, paths = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    prober, seen, turn = Prober(port), [], 0
    due = time.monotonic()
    while not over.is_set():
        start = time.monotonic()
        status = prober.ask(paths[turn % len(paths)])
        seen.append((paths[turn % len(paths)], start, time.monotonic() - start, status))
        turn += 1
        due = max(due + interval, time.monotonic() - 1.0)
        over.wait(max(0.0, due - time.monotonic()))
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
