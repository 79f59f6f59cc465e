"""Middleware of every route, as plain ASGI (so that streams and disconnects pass through untouched): keys, ids, counts."""

from __future__ import annotations

import hashlib
import hmac
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from ipaddress import ip_address

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from thalweg.server.errors import ApiError
from thalweg.server.http.answer import failure
from thalweg.server.http.bodies import is_json
from thalweg.server.http.crowd import neighbourhood
from thalweg.server.http.probes import is_exposition, probe_of

SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
"""They change nothing, and a page of another origin cannot read their answers."""
ORIGIN_HEADERS = frozenset((b"origin", b"host", b"content-type", b"sec-fetch-site"))
MOST_ID = 256
"""Bytes of a request id. A longer one is refused, not echoed."""


class KeyGuard:
    """Refuses requests without one of the keys. Default deny: a new route is guarded without further code."""

    def __init__(
        self, app: ASGIApp, keys: Sequence[str], root_path: str = "", public: Sequence[Callable[[Scope, str], bool]] = ()
    ) -> None:
        """public: (scope, root path) -> whether the request needs no key."""
        self.app, self.root_path, self._public = app, root_path, public
        self._digests = [hashlib.sha256(k.encode()).digest() for k in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no websockets here
        if probe_of(scope["path"].removeprefix(self.root_path)) or self._is_authorized(scope) or self._is_public(scope):
            await self.app(scope, receive, send)
            return
        error = ApiError(
            "missing or wrong API key; send the header Authorization: Bearer <key>, or x-api-key: <key>", status=401
        )
        await failure(error)(scope, receive, send)

    def _is_public(self, scope: Scope) -> bool:
        return any(is_public(scope, self.root_path) for is_public in self._public)

    def _is_authorized(self, scope: Scope) -> bool:
        found = [i for key in _keys(scope["headers"]) for i in self._matching(key)]
        if found and len(self._digests) > 1:
            scope["thalweg.tenant"] = f"key {found[0]}"
        return bool(found)

    def _matching(self, key: bytes) -> list[int]:
        digest = hashlib.sha256(key).digest()
        # Every key is compared, so the time taken does not tell which one was close.
        return [i for i, d in enumerate(self._digests) if hmac.compare_digest(digest, d)]


def _keys(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Keys of a request: at most one of each header. Clients of the Messages API send x-api-key."""
    bearer, plain = [], []
    for name, value in headers:
        if name == b"authorization":
            bearer.append(value)
        elif name == b"x-api-key":
            plain.append(value)
    keys = [bearer[0][7:].strip()] if len(bearer) == 1 and bearer[0][:7].lower() == b"bearer " else []
    return keys + ([plain[0].strip()] if len(plain) == 1 else [])


class MetricsPort:
    """Answers only /metrics and probes on one port of the server, without a key."""

    def __init__(self, app: ASGIApp, unguarded: ASGIApp, port: int, root_path: str = "") -> None:
        """app: for requests to other ports. unguarded: for the permitted requests to this one."""
        self.app, self._unguarded, self._port, self.root_path = app, unguarded, port, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope.get("server") or ("", 0))[1] != self._port:
            await self.app(scope, receive, send)
        elif is_exposition(scope, self.root_path) or probe_of(scope["path"].removeprefix(self.root_path)):
            await self._unguarded(scope, receive, send)
        else:
            await failure(ApiError("this port answers only GET /metrics and probes", status=404))(scope, receive, send)


class HostGuard:
    """Refuses requests to host names other than this server's. Addresses pass: no page of another origin has one of ours as its
    name. Probes are answered for any name."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], root_path: str = "") -> None:
        self.app, self._hosts, self.root_path = app, hosts, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = next((v for k, v in scope["headers"] if k == b"host"), None)  # absent: HTTP/1.0, which no browser speaks
        if name is None or self._ours(name.decode("latin-1")) or probe_of(scope["path"].removeprefix(self.root_path)):
            await self.app(scope, receive, send)
            return
        words = f"this server does not go by the name {name.decode('latin-1')!r}; start it with --allowed-hosts to add names"
        await failure(ApiError(words, status=403))(scope, receive, send)

    def _ours(self, host: str) -> bool:
        name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        name = name.lower().rstrip(".")
        if name in self._hosts or name.endswith(".localhost"):
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


class OriginGuard:
    """Refuses requests that a web page of another origin sends without a preflight, as a form does. A browser sends a CORS
    preflight before JSON, and is refused there. Every route is closed to such pages, whatever its body.

    Sec-Fetch-Site and Origin are set by browsers, never by pages. Other clients send neither."""

    def __init__(self, app: ASGIApp, allowed: Collection[str] = ()) -> None:
        """allowed: origins of --allowed-origins. "*": any."""
        self.app, self._allowed = app, frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS or not self._is_foreign(scope):
            await self.app(scope, receive, send)
            return
        words = "pages of other origins may not use this server; start it with --allowed-origins to let them"
        await failure(ApiError(words, status=403))(scope, receive, send)

    def _is_foreign(self, scope: Scope) -> bool:
        headers = {k: v.decode("latin-1") for k, v in scope["headers"] if k in ORIGIN_HEADERS}
        origin = headers.get(b"origin")
        if is_json(headers.get(b"content-type", "")) or "*" in self._allowed or origin in self._allowed:
            return False
        if site := headers.get(b"sec-fetch-site"):
            return site not in ("same-origin", "none")
        return origin is not None and origin.partition("://")[2] != headers.get(b"host", "")


def tenant_of(scope: Scope) -> str:
    """The unit of fairness: the key where there are several, else the client's host, or its IPv6 network."""
    client = scope.get("client")
    return str(scope.get("thalweg.tenant") or (neighbourhood(client[0]) if client else ""))


current_scope: ContextVar[Scope] = ContextVar("scope", default={})  # noqa: B039 - it is never changed
"""Scope of the current request, for code without access to it."""


def owner_of(scope: Scope) -> str:
    """The owner of stored things: the key where there are several. "": shared by all."""
    return str(scope.get("thalweg.tenant") or "")


class RootPath:
    """Tells routes which prefix the reverse proxy serves them under, whether or not it strips it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app, self.root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app({**scope, "root_path": self.root_path}, receive, send)


class RequestIds:
    """X-Request-Id on every answer: the client's, or else one made here, by which the request is known inside too."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name, headers = b"x-request-id", scope.get("headers", ())
        given = next((v for k, v in headers if k == name), None)
        if given is None:
            result = uuid.uuid4().hex
            given, scope = result.encode(), {**scope, "thalweg.request_id": result}

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start" and len(given) <= MOST_ID:
                message = {**message, "headers": [*message.get("headers", ()), (name, given)]}
            await send(message)

        await self.app(scope, receive, send_with_id)


class RequestCounter:
    """Counts requests and their durations, and how many are in flight."""

    def __init__(
        self,
        app: ASGIApp,
        in_flight: Callable[[str], AbstractContextManager[None]],
        done: Callable[[str, str, int, float, int, int], None],
    ) -> None:
        """in_flight(path): entered while a request of that path is. done(path, method, status, seconds, request bytes, answer
        bytes): called when it has ended."""
        self.app, self._in_flight, self._done = app, in_flight, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, gave = time.perf_counter(), 500, 0

        async def record_and_send(message: Message) -> None:
            nonlocal status, gave
            if message["type"] == "http.response.start":
                status, gave = message["status"], _length(message.get("headers", ()))
            await send(message)

        path, method = scope["path"], scope["method"]
        with self._in_flight(path):
            try:
                await self.app(scope, receive, record_and_send)
            finally:
                took = _length(scope.get("headers", ()))
                self._done(path, method, status, time.perf_counter() - start, took, gave)


def _length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """What content-length says. 0 where there is none."""
    return next((int(v) for k, v in headers if k == b"content-length" and v.isdigit()), 0)
