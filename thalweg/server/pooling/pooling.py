"""/pooling: the model's output for each input, vectors or class scores."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from thalweg.params import PoolingParams
from thalweg.server.core.serving import Serving
from thalweg.server.pooling import work
from thalweg.server.pooling.embeddings import encode_array
from thalweg.server.pooling.protocol import PoolingRequest
from thalweg.server.pooling.work import PoolingJob


async def pooling(serving: Serving, http: Request) -> Response:
    request, ticket = await work.read(serving, http, PoolingRequest)
    params = PoolingParams(task=request.task, dimensions=request.dimensions, use_activation=request.use_activation)
    prompts = await work.inputs(serving, request, ticket.tenant)
    job = work.job(serving, "pool", http, request, prompts, params, ticket)
    return await work.answer(http, _body(serving, request, job))


async def _body(serving: Serving, request: PoolingRequest, job: PoolingJob) -> bytes:
    outputs = await work.run(serving, job)

    def entry(i: int, output: work.Output) -> dict[str, Any]:
        return {"index": i, "object": "pooling", "data": encode_array(request, output.outputs.data)}

    return await work.serialize_outputs(work.list_response(job, None, work.usage(serving, outputs)), outputs, entry)
