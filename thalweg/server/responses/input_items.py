"""GET /v1/responses/{id}/input_items: the input of one response, without the turns before it."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.core.context import ServerContext
from thalweg.server.core.query import whole
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import respond
from thalweg.server.responses.retrieve import found

MOST = 100


async def input_items(serving: ServerContext, http: Request) -> Response:
    turn, query = found(serving, http), http.query_params
    limit = whole(http, "limit", 20, 1, MOST)
    order, after = query.get("order", "desc"), query.get("after")
    if order not in ("asc", "desc"):
        raise ApiError("order: must be asc or desc", "order")
    items = orjson.loads(turn.input)
    if order == "desc":
        items.reverse()
    if after:
        at = next((i for i, item in enumerate(items) if item["id"] == after), None)
        if at is None:
            raise ApiError(f"after: no item {after[:80]!r} in this response's input", "after")
        items = items[at + 1 :]
    page = items[:limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return respond({"object": "list", "data": page, "has_more": len(page) < len(items), **ends})
