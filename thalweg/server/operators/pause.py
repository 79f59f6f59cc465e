"""/pause, /resume, /is_paused and /reset_prefix_cache."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from thalweg.refused import EXTERNAL
from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import respond
from thalweg.server.operators.query import check_query, flag


async def pause(serving: Serving, http: Request) -> Response:
    check_query(http, ("mode", "wait_for_inflight_requests", "clear_cache"))
    mode = http.query_params.get("mode", "abort")
    if flag(http, "wait_for_inflight_requests", False):  # the old name of mode=wait
        if "mode" in http.query_params and mode != "wait":
            raise ApiError("wait_for_inflight_requests: means mode=wait; give only one", "wait_for_inflight_requests")
        mode = "wait"
    await serving.engine.pause_generation(mode, clear_cache=flag(http, "clear_cache", True))
    return respond({"status": "paused"})


async def resume(serving: Serving, http: Request) -> Response:
    check_query(http, ())
    await serving.engine.resume_generation()
    return respond({"status": "resumed"})


async def is_paused(serving: Serving, http: Request) -> Response:
    return respond({"is_paused": await serving.engine.is_paused()})


async def reset_prefix_cache(serving: Serving, http: Request) -> Response:
    """Running requests go on. Other requests do not find their blocks."""
    check_query(http, ("reset_running_requests", "reset_external"))
    if flag(http, "reset_running_requests", False):
        raise ApiError(
            "reset_running_requests: running requests keep their own cache here; use /pause?mode=abort to end them",
            "reset_running_requests",
        )
    if flag(http, "reset_external", False):
        raise ApiError(f"reset_external: {EXTERNAL}", "reset_external")
    return respond({"success": await serving.engine.reset_prefix_cache()})
