"""/start_profile and /stop_profile."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.core.serving import Serving
from thalweg.server.http.answer import respond
from thalweg.server.operators.query import check_query


async def start(serving: Serving, http: Request) -> Response:
    check_query(http, ())
    await serving.engine.start_profile()
    return respond({"status": "started"})


async def stop(serving: Serving, http: Request) -> Response:
    """Answered when the files are written."""
    check_query(http, ())
    await serving.engine.stop_profile()
    return respond({"status": "stopped"})
