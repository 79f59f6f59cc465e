"""/v1/batches: made of a file, looked at, listed and cancelled."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.batches.batch import ENDED, Batch
from thalweg.server.batches.registry import kept_by, page
from thalweg.server.core.context import ServerContext
from thalweg.server.core.fields import refuse_asked
from thalweg.server.core.schema import Label, WireModel
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import respond
from thalweg.server.http.middleware import owner_of, tenant_of


class BatchRequest(WireModel):
    input_file_id: Label
    endpoint: Label
    completion_window: Label
    metadata: Annotated[dict[Label, Label], Field(max_length=16)] | None = None

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        refuse_asked(body, {"output_expires_after": ()}, {})


async def create(serving: ServerContext, http: Request) -> Response:
    request = await serving.bodies.parse(http, lambda body: serving.fields.parse(BatchRequest, body))
    kept, owner = kept_by(serving), owner_of(http.scope)
    if request.endpoint not in kept.endpoints:
        raise ApiError(f"endpoint: must be one of {', '.join(sorted(kept.endpoints))}", "endpoint")
    if request.completion_window != "24h":
        raise ApiError("completion_window: must be 24h", "completion_window")
    source = kept.files.get(owner, request.input_file_id, "input_file_id")
    if source.purpose != "batch":
        raise ApiError(f"input_file_id: a batch reads files of purpose batch, not {source.purpose}", "input_file_id")
    batch = Batch(owner, source, request.endpoint, request.metadata)
    kept.add(batch)
    description = batch.describe()
    kept.runner.start(batch, tenant_of(http.scope))
    return respond(description)


async def retrieve(serving: ServerContext, http: Request) -> Response:
    return respond(kept_by(serving).batch(owner_of(http.scope), http.path_params["id"]).describe())


async def listing(serving: ServerContext, http: Request) -> Response:
    return respond(page(http, kept_by(serving).batches(owner_of(http.scope)), 100, 20))


async def cancel(serving: ServerContext, http: Request) -> Response:
    """Answers written until then stay in the files."""
    batch = kept_by(serving).batch(owner_of(http.scope), http.path_params["id"])
    if batch.status in ENDED and batch.status != "cancelled":
        raise ApiError(f"batch_id: that batch has ended before ({batch.status})", "batch_id")
    if batch.status not in ENDED and batch.task is not None:
        batch.become("cancelling")
        batch.task.cancel()
        await asyncio.wait({batch.task})
    return respond(batch.describe())
