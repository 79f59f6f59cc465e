"""/get_world_size and /is_scaling_elastic_ep."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.core.serving import Serving
from thalweg.server.http.answer import respond
from thalweg.server.operators.query import check_query, flag


async def get_world_size(serving: Serving, http: Request) -> Response:
    check_query(http, ("include_dp",))
    return respond({"world_size": serving.engine.get_world_size(flag(http, "include_dp", True))})


async def is_scaling(serving: Serving, http: Request) -> Response:
    """Never: a server has one engine from its start to its end. Load balancers of the field ask."""
    check_query(http, ())
    return respond({"is_scaling_elastic_ep": False})
