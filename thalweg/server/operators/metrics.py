"""/version, /load and /metrics."""

from __future__ import annotations

from time import monotonic

from starlette.requests import Request
from starlette.responses import Response

import thalweg
from thalweg.server.core.context import ServerContext
from thalweg.server.http.answer import respond
from thalweg.server.observe.metrics import exposition

FRESH_SECONDS = 1.0
"""Least seconds between two expositions, for all clients: one costs milliseconds of the event loop."""


class Exposition:
    """The latest of a server."""

    def __init__(self, serving: ServerContext) -> None:
        self._serving, self._until = serving, 0.0
        self._body, self._kind = b"", ""

    def response(self) -> Response:
        if monotonic() >= self._until:
            traffic, settings = self._serving.traffic, self._serving.settings
            self._body, self._kind = exposition(traffic.registry, settings.metrics_prefix)
            self._until = monotonic() + FRESH_SECONDS
        return Response(self._body, media_type=self._kind)


async def version(serving: ServerContext, http: Request) -> Response:
    return respond({"version": thalweg.__version__})


async def load(serving: ServerContext, http: Request) -> Response:
    return respond({"server_load": serving.traffic.load if serving.settings.enable_server_load_tracking else 0})


async def metrics(serving: ServerContext, http: Request) -> Response:
    return serving.share(Exposition).response()
