"""POST /v1/responses/{id}/cancel."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.core.context import ServerContext
from thalweg.server.errors import ApiError
from thalweg.server.responses.retrieve import found


async def cancel(serving: ServerContext, http: Request) -> Response:
    """The response as it is then. An already cancelled one is answered again."""
    turn = found(serving, http)
    if not turn.background:
        raise ApiError("response_id: only a response of background=true can be cancelled", "response_id")
    if turn.task is not None:
        turn.task.cancel()
        await asyncio.wait({turn.task})
    status = turn.response()["status"]
    if status != "cancelled":
        raise ApiError(f"response_id: that response has ended before ({status})", "response_id")
    return Response(turn.body, media_type="application/json")
