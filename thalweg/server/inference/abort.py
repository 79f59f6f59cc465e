"""/abort_requests: requests ended by name, for front-ends with their own clients."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.core.serving import Serving
from thalweg.server.http.answer import respond
from thalweg.server.http.middleware import owner_of
from thalweg.server.inference.protocol import AbortRequest


async def abort_requests(serving: Serving, http: Request) -> Response:
    """Their answers end with the reason "abort". Ids under which nothing of the same API key runs are passed over."""
    request = await serving.bodies.parse(http, lambda body: serving.fields.parse(AbortRequest, body))
    asked, owner = set(request.request_ids), owner_of(http.scope)
    own = [r for r in serving.running if serving.owners[r] == owner]
    found = [r for r in own if (name := r.rpartition("-")[0]) in asked or name.partition("-")[2] in asked]
    await serving.engine.abort(found)
    return respond({"aborted": len(found)})
