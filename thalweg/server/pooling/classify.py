"""/classify: the argmax of each input's classes, and the probability of every one."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from thalweg.params import PoolingParams
from thalweg.server.core.serving import Serving
from thalweg.server.pooling import work
from thalweg.server.pooling.protocol import ClassifyRequest
from thalweg.server.pooling.work import PoolingJob


async def classify(serving: Serving, http: Request) -> Response:
    request, ticket = await work.read(serving, http, ClassifyRequest)
    params = PoolingParams(task="classify", use_activation=request.use_activation)
    prompts = await work.inputs(serving, request, ticket.tenant)
    job = work.job(serving, "classify", http, request, prompts, params, ticket)
    return await work.answer(http, _body(serving, job))


async def _body(serving: Serving, job: PoolingJob) -> bytes:
    outputs, pooling = await work.run(serving, job), serving.engine.config.model.pooling
    assert pooling is not None

    def entry(i: int, output: work.Output) -> dict[str, Any]:
        probs = output.outputs.data
        return {"index": i, "label": pooling.labels[int(probs.argmax())], "probs": probs, "num_classes": probs.size}

    return await work.serialize_outputs(work.list_response(job, None, work.usage(serving, outputs)), outputs, entry)
