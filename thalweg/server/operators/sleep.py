"""/sleep, /wake_up and /is_sleeping."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.core.query import whole
from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import respond
from thalweg.server.operators.query import check_query

TAGS = ("weights", "kv_cache")


async def sleep(serving: Serving, http: Request) -> Response:
    check_query(http, ("level", "mode"))
    await serving.engine.sleep(whole(http, "level", 1), http.query_params.get("mode", "abort"))
    return respond({"status": "sleeping"})


async def wake_up(serving: Serving, http: Request) -> Response:
    """Answered when the engine serves."""
    check_query(http, ("tags",))
    check_tags(http)
    await serving.engine.wake_up()
    return respond({"status": "awake"})


def check_tags(http: Request) -> None:
    """ApiError for tags that name only a part of the engine."""
    tags = set(http.query_params.getlist("tags"))
    if unknown := sorted(tags - set(TAGS)):
        raise ApiError(f"tags: {unknown[0]!r} is not one of {', '.join(TAGS)}", "tags")
    if tags and tags != set(TAGS):
        raise ApiError("tags: this engine wakes whole; leave tags out, or give both", "tags")


async def is_sleeping(serving: Serving, http: Request) -> Response:
    return respond({"is_sleeping": await serving.engine.is_sleeping()})
