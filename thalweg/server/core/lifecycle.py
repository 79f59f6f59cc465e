"""State of the server (loading, serving, draining), and its open requests. Answers the probes. Knows no endpoint.

Probes report the actual state. /livez: this process answers. /readyz, /health and /ping: a request sent now would be served.
They fail while the engine is loading, restarting, failed or draining.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from thalweg.server.errors import ApiError
from thalweg.server.http.answer import failure, respond
from thalweg.server.http.probes import probe_of

REASONS = {
    "starting": "the model is loading",
    "restarting": "the engine is restarting; open requests go on when it is back",
    "sleeping": "the engine sleeps until /wake_up; requests wait",
    "failed": "the engine has failed; the server's log says why",
    "stopped": "the engine is stopped",
    "draining": "the server is shutting down",
}
"""The only texts of a probe: no message of the engine reaches an untrusted client."""


class Readiness(Protocol):
    """An engine, or a router of several."""

    @property
    def ready(self) -> bool:
        """Could a request be served now?"""

    @property
    def state(self) -> str:
        """A key of REASONS, or ready."""


class Lifecycle:
    """One server's state. Moves only forwards: `open`, `drain`, `cut`."""

    def __init__(self) -> None:
        self.engine: Readiness | None = None
        self.draining = False
        self.cutting = False
        """Past the deadline: open requests end with an error."""
        self.inside = 0
        """Requests accepted and not answered to the end."""
        self._empty = asyncio.Event()
        self._empty.set()

    def open(self, engine: Readiness) -> None:
        self.engine = engine

    def drain(self) -> None:
        """From now on no new request is accepted, on any connection."""
        self.draining = True

    def why_not_ready(self) -> str:
        """ "": ready."""
        if self.draining:
            return REASONS["draining"]
        if self.engine is None:
            return REASONS["starting"]
        return "" if self.engine.ready else REASONS.get(self.engine.state, REASONS["restarting"])

    def enter(self) -> None:
        self.inside += 1
        self._empty.clear()

    def leave(self) -> None:
        self.inside -= 1
        if not self.inside:
            self._empty.set()

    async def empty(self) -> None:
        """Returns when no request is open."""
        await self._empty.wait()


class RequestScope:
    """Resources of one accepted request, under "thalweg.visit" in its scope. They are released when it ends, however it
    ends."""

    def __init__(self) -> None:
        self._last: list[Callable[[], None]] = []

    def at_end(self, action: Callable[[], None]) -> None:
        self._last.append(action)

    def handed_over(self) -> RequestScope:
        """Its resources, for work that continues after the answer."""
        other = RequestScope()
        other._last, self._last = self._last, []
        return other

    def close(self) -> None:
        while self._last:
            self._last.pop()()


class Gate:
    """Answers probes, and lets others in while the server serves. `app` comes when the engine is up."""

    def __init__(self, lifecycle: Lifecycle, root_path: str = "") -> None:
        self.lifecycle, self.root_path = lifecycle, root_path
        self.app: ASGIApp | None = None
        self.early: Callable[[Scope], ASGIApp | None] = lambda scope: None
        """The application for a request that needs no engine. None: the request needs it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no websockets here, and nothing to do at start and end
        probe = probe_of(scope["path"].removeprefix(self.root_path))
        if probe:
            await self._probe(probe, scope["method"])(scope, receive, send)
            return
        life = self.lifecycle
        if self.app is None and not life.draining and (early := self.early(scope)) is not None:
            await early(scope, receive, send)
            return
        if life.draining or self.app is None:
            e = ApiError(life.why_not_ready(), status=503, retry_after=5 if life.draining else 1)
            response = failure(e)
            if life.draining:
                response.headers["connection"] = "close"
            await response(scope, receive, send)
            return
        visit = scope["thalweg.visit"] = RequestScope()
        life.enter()
        try:
            await self.app(scope, receive, send)
        finally:
            life.leave()
            visit.close()

    def _probe(self, path: str, method: str) -> Response:
        if method not in ("GET", "HEAD") and not (path == "/ping" and method == "POST"):
            allowed = "GET, HEAD, POST" if path == "/ping" else "GET, HEAD"
            return failure(ApiError("probes are read with GET", status=405), {"Allow": allowed})
        why = self.lifecycle.why_not_ready()
        if path == "/livez" and why != REASONS["failed"]:  # a lost engine does not come back: restart the server
            why = ""
        response = respond({"status": "not ready", "reason": why} if why else {"status": "ok"}, 503 if why else 200)
        response.headers["cache-control"] = "no-store"
        if why:
            response.headers["retry-after"] = "1"
        return response
