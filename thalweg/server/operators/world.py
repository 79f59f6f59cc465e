"""/get_world_size, /scale_elastic_ep and /is_scaling_elastic_ep."""

from __future__ import annotations

import logging
from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.core.schema import Int32, WireModel
from thalweg.server.core.serving import Serving
from thalweg.server.http.answer import respond
from thalweg.server.operators.query import check_query, flag

log = logging.getLogger(__name__)


class ScaleRequest(WireModel):
    """A number of engines, and the seconds that requests of removed ones have to finish there."""

    new_data_parallel_size: Annotated[Int32, Field(ge=1)]
    drain_timeout: Annotated[Int32, Field(ge=1)] = 120


async def get_world_size(serving: Serving, http: Request) -> Response:
    check_query(http, ("include_dp",))
    return respond({"world_size": serving.engine.get_world_size(flag(http, "include_dp", True))})


async def scale(serving: Serving, http: Request) -> Response:
    """Answered when that many engines serve. Requests go on meanwhile."""
    check_query(http, ())
    requested = await serving.bodies.parse(http, lambda body: serving.fields.parse(ScaleRequest, body))
    log.info("the number of engines is to become %d", requested.new_data_parallel_size)
    await serving.engine.scale_elastic_ep(requested.new_data_parallel_size, requested.drain_timeout)
    return respond({"message": f"Scaled to {requested.new_data_parallel_size} data parallel engines"})


async def is_scaling(serving: Serving, http: Request) -> Response:
    """Load balancers of the field ask."""
    check_query(http, ())
    return respond({"is_scaling_elastic_ep": await serving.engine.is_scaling_elastic_ep()})
