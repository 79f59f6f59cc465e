"""/abort_requests: requests ended by name, for front-ends with their own clients."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.core.context import ServerContext
from thalweg.server.core.serving import Serving
from thalweg.server.http.answer import respond
from thalweg.server.http.middleware import owner_of
from thalweg.server.inference.protocol import AbortRequest


async def abort_requests(serving: Serving, http: Request) -> Response:
    """Their answers end with the reason "abort". Ids under which nothing of the same API key runs are passed over."""
    request = await read_abort(serving, http)
    return respond({"aborted": await abort_of(serving, request, owner_of(http.scope))})


async def read_abort(context: ServerContext, http: Request) -> AbortRequest:
    """The request, checked. ApiError names the field."""
    return await context.bodies.parse(http, lambda body: context.fields.parse(AbortRequest, body))


async def abort_of(serving: Serving, request: AbortRequest, owner: str) -> int:
    """End the requests of one model that have these names. Returns how many."""
    requested = set(request.request_ids)
    own = [r for r in serving.running if serving.owners[r] == owner]
    found = [r for r in own if (name := r.rpartition("-")[0]) in requested or name.partition("-")[2] in requested]
    await serving.engine.abort(found)
    return len(found)
