"""Fetching a URL of a host that the operator allows: one look-up, a connection to the address that was checked, no redirect."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from thalweg.errors import ConfigError, RequestError

SECONDS = 5.0
"""For one step of a connection."""
TOTAL_SECONDS = 20.0
"""For one item."""
PIECE = 1 << 16
SAFE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-:[]")
"""Characters of a host and port. One parser's user or path must not be another's host."""
WEB_PORTS = (80, 443)
"""Ports allowed for a host without an explicit port."""


class Fetcher:
    """Thread-safe."""

    def __init__(self, domains: Sequence[str], most_bytes: int) -> None:
        """domains: HOST allows its WEB_PORTS, HOST:PORT that port. An address, or localhost, allows that address. A name
        allows public addresses only. ConfigError for anything else."""
        self._allowed = frozenset(place for domain in domains for place in _places(domain))
        self._most = most_bytes

    def get(self, url: str, at: str) -> bytes:
        """The body of a 200 answer. RequestError names `at`."""
        parts, host, port = self._check(url, at)
        address = self._resolve(host, port, at)
        until = time.monotonic() + TOTAL_SECONDS
        slow = RequestError(f"{at}: the host {host[:80]!r} took longer than {TOTAL_SECONDS:g} seconds", at)
        try:
            body = self._request(parts, host, port, address, at)
        except RequestError:
            raise
        except (OSError, http.client.HTTPException, ValueError):
            # A connection that was hung up on fails where it stands: a write, a header or the body.
            if time.monotonic() >= until:
                raise slow from None
            raise RequestError(f"{at}: could not be fetched from {host[:80]!r}", at) from None
        if time.monotonic() >= until:  # the body was truncated
            raise slow
        if not body:
            raise RequestError(f"{at}: is empty", at)
        return body

    def host(self, url: str, at: str) -> str:
        """The host that `get` would ask. RequestError if it would refuse to."""
        return self._check(url, at)[1]

    def _check(self, url: str, at: str) -> tuple[SplitResult, str, int]:
        """Parts, host and port of a URL that may be fetched. RequestError for another."""
        if not self._allowed:
            raise RequestError(
                f"{at}: URLs are not fetched; send the bytes as a data: URL, or start the server with "
                "--allowed-media-domains HOST", at,
            )  # fmt: skip
        parts, host, port = _parse_url(url, at)
        if (host, port) in self._allowed:
            return parts, host, port
        if any(host == allowed for allowed, _ in self._allowed):
            raise RequestError(
                f"{at}: port {port} of the host {host[:80]!r} is not among --allowed-media-domains: a host means ports 80 and "
                "443, and HOST:PORT another", at,
            )  # fmt: skip
        raise RequestError(f"{at}: the host {host[:80]!r} is not among --allowed-media-domains", at)

    def _resolve(self, host: str, port: int, at: str) -> str:
        """The first address of the host, all of which must be allowed."""
        literal = host.strip("[]")
        try:
            found = [str(f[4][0]) for f in socket.getaddrinfo(literal, port, type=socket.SOCK_STREAM)]
        except (OSError, UnicodeError):
            raise RequestError(f"{at}: the host {host[:80]!r} is not known", at) from None
        named = literal == "localhost" or _is_address(literal)
        if not found or not (named or all(map(_public, found))):
            raise RequestError(f"{at}: the host {host[:80]!r} has a private address", at)
        return found[0]

    def _request(self, parts: SplitResult, host: str, port: int, address: str, at: str) -> bytes:
        raw = socket.create_connection((address, port), SECONDS)
        held = [raw]
        # Each wait has an end; so has their sum, however slowly a server says its headers.
        end = threading.Timer(TOTAL_SECONDS, _hang_up, (held,))
        end.daemon = True
        end.start()
        with contextlib.ExitStack() as after:
            after.callback(lambda: held[0].close())
            after.callback(end.cancel)
            if parts.scheme == "https":
                context = ssl.create_default_context()
                secure = context.wrap_socket(raw, server_hostname=host.strip("[]"), do_handshake_on_connect=False)
                held[0] = secure
                secure.do_handshake()
            connection = http.client.HTTPConnection(address, port)
            connection.sock = held[0]
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            standard = port == (443 if parts.scheme == "https" else 80)
            connection.putrequest("GET", target, skip_host=True, skip_accept_encoding=True)
            connection.putheader("Host", host if standard else f"{host}:{port}")
            connection.putheader("Accept", "image/*")
            connection.putheader("Connection", "close")
            connection.endheaders()
            answer = connection.getresponse()
            if answer.status != 200:
                what = "redirects, which are not followed" if 300 <= answer.status < 400 else f"answers {answer.status}"
                raise RequestError(f"{at}: the host {host[:80]!r} {what}", at)
            out = bytearray()
            while piece := answer.read1(PIECE):
                out += piece
                if len(out) > self._most:
                    raise RequestError(f"{at}: more than {self._most >> 20} MiB; use a smaller file", at)
            return bytes(out)


def _hang_up(held: list[socket.socket]) -> None:
    with contextlib.suppress(OSError):
        held[0].shutdown(socket.SHUT_RDWR)


def _places(domain: str) -> list[tuple[str, int]]:
    """(host, port) of each port that an entry of --allowed-media-domains means."""
    wrong = ConfigError(f"allowed_media_domains: {domain!r} is neither HOST nor HOST:PORT, such as images.example.org")
    name = domain.strip().lower()
    if _is_address(name) and ":" in name:
        name = f"[{name}]"
    try:
        parts = urlsplit(f"//{name}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise wrong from None
    if not host or parts.netloc != name or not set(name) <= SAFE or port == 0 or name.endswith(":"):
        raise wrong
    host = f"[{host}]" if ":" in host else host.rstrip(".")
    return [(host, p) for p in ((port,) if port else WEB_PORTS)]


def _parse_url(url: str, at: str) -> tuple[SplitResult, str, int]:
    """Parts, host in lower case, port. RequestError for a URL that two parsers could read differently."""
    wrong = RequestError(f"{at}: is not a plain http or https URL without user, password and white space", at)
    if len(url) > 8192 or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise wrong
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise wrong from None
    netloc = parts.netloc.lower()
    if not host or not set(netloc) <= SAFE or port == 0:
        raise wrong
    host = f"[{host}]" if ":" in host else host.rstrip(".")
    return parts, host, port or (443 if parts.scheme == "https" else 80)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is not None:
            found = inner
    return found.is_global and not found.is_multicast
