"""/reset_mm_cache and /reset_encoder_cache."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.core.serving import Serving
from thalweg.server.http.answer import respond
from thalweg.server.operators.query import check_query


async def reset_mm_cache(serving: Serving, http: Request) -> Response:
    """Answered when no media that were read before are found again."""
    check_query(http, ())
    await serving.engine.reset_mm_cache()
    return respond({"success": True})


async def reset_encoder_cache(serving: Serving, http: Request) -> Response:
    """Answered when no output of an encoder is found again."""
    check_query(http, ())
    await serving.engine.reset_encoder_cache()
    return respond({"success": True})
