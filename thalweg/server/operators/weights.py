"""Weights from a trainer: /init_weight_transfer_engine, /start_weight_update, /update_weights, /finish_weight_update, and
/collective_rpc with these methods."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from thalweg.errors import NotSupportedError, UnavailableError
from thalweg.server.core.schema import Flag, Number, WireModel
from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import respond
from thalweg.server.operators.query import check_query


class InitRequest(WireModel):
    """The trainer's process group."""

    init_info: dict[str, Any]


class StartUpdateRequest(WireModel):
    """The form of the weights to come."""

    is_checkpoint_format: Flag = True


class UpdateRequest(WireModel):
    """A batch of tensors."""

    update_info: dict[str, Any]


class CollectiveRequest(WireModel):
    """A method of vLLM's workers."""

    method: Annotated[str, Field(max_length=256)]
    args: list[Any] = Field(default_factory=list, max_length=16)
    kwargs: dict[str, Any] = Field(default_factory=dict, max_length=16)
    timeout: Annotated[Number, Field(gt=0, le=86400)] | None = None


async def init(serving: Serving, http: Request) -> Response:
    """Answered when the trainer has joined the group too."""
    check_query(http, ())
    requested = await serving.bodies.parse(http, lambda body: serving.fields.parse(InitRequest, body))
    await serving.engine.init_weight_transfer_engine(requested.init_info)
    return respond({"message": "Weight transfer initialized"})


async def start(serving: Serving, http: Request) -> Response:
    """The body may be absent."""
    check_query(http, ())
    requested = StartUpdateRequest()
    if http.headers.get("content-length", "0") != "0" or "transfer-encoding" in http.headers:
        requested = await serving.bodies.parse(http, lambda body: serving.fields.parse(StartUpdateRequest, body))
    await serving.engine.start_weight_update(requested.is_checkpoint_format)
    return respond({"message": "Weight update started"})


async def update(serving: Serving, http: Request) -> Response:
    """Answered when the batch has been received."""
    check_query(http, ())
    requested = await serving.bodies.parse(http, lambda body: serving.fields.parse(UpdateRequest, body))
    await serving.engine.update_weights(requested.update_info)
    return respond({"message": "Weights updated"})


async def finish(serving: Serving, http: Request) -> Response:
    """Answered when the engine serves the new weights."""
    check_query(http, ())
    await serving.engine.finish_weight_update()
    return respond({"message": "Weight update finished", "weight_version": serving.engine.weights_version})


async def collective_rpc(serving: Serving, http: Request) -> Response:
    """One of the calls above, as vLLM's route for worker methods has them."""
    check_query(http, ())
    requested = await serving.bodies.parse(http, lambda body: serving.fields.parse(CollectiveRequest, body))
    try:
        results = await serving.engine.collective_rpc(requested.method, requested.timeout, requested.args, requested.kwargs)
    except NotSupportedError as e:
        raise ApiError(str(e), "method") from None
    except TimeoutError:
        raise UnavailableError(f"{requested.method}: no result within {requested.timeout:g} s") from None
    return respond({"results": results})
