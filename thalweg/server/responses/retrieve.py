"""Stored responses: GET and DELETE /v1/responses/{id}."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.core.context import ServerContext
from thalweg.server.core.query import whole
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import STARTED, EventStream, respond
from thalweg.server.http.middleware import owner_of
from thalweg.server.responses.errors import ERRORS
from thalweg.server.responses.run import missing
from thalweg.server.responses.store import EventLog, StoredResponse, store

NOT_STREAMED = "stream: only a response of background=true can be streamed again; fetch it without stream"


def found(serving: ServerContext, http: Request) -> StoredResponse:
    """The response that the path names. ApiError 404, for another owner's too."""
    id = http.path_params["id"]
    turn = store(serving).get(owner_of(http.scope), id)
    if turn is None:
        raise missing(id, store(serving).limit)
    return turn


async def retrieve(serving: ServerContext, http: Request) -> Response:
    turn, query = found(serving, http), http.query_params
    if query.get("stream", "false").lower() != "true":
        return Response(turn.body, media_type="application/json")
    after = whole(http, "starting_after", -1, -(2**31))
    if turn.log is None:
        raise ApiError(NOT_STREAMED, "stream")
    return EventStream(_again(turn.log, max(0, after + 1)), form=ERRORS)


async def _again(log: EventLog, at: int) -> AsyncGenerator[bytes, None]:
    """Frames from number `at` on. There may be none, and the answer begins all the same."""
    yield STARTED
    async for frame in log.read(at):
        yield frame


async def delete(serving: ServerContext, http: Request) -> Response:
    turn = found(serving, http)
    store(serving).delete(owner_of(http.scope), turn.id)
    if turn.task is not None:
        turn.task.cancel()
    return respond({"id": turn.id, "object": "response", "deleted": True})
