"""/version, /load and /metrics."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

import thalweg
from thalweg.server.core.serving import Serving
from thalweg.server.http.answer import respond
from thalweg.server.observe.metrics import exposition


async def version(serving: Serving, http: Request) -> Response:
    return respond({"version": thalweg.__version__})


async def load(serving: Serving, http: Request) -> Response:
    return respond({"server_load": serving.traffic.load if serving.settings.enable_server_load_tracking else 0})


async def metrics(serving: Serving, http: Request) -> Response:
    body, kind = exposition(serving.traffic.registry, serving.settings.metrics_prefix)
    return Response(body, media_type=kind)
