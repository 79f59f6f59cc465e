"""/v1/embeddings: a vector per input, as numbers or as their bytes in base64."""

from __future__ import annotations

import base64
import sys
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from thalweg.params import PoolingParams
from thalweg.server.core.serving import Serving
from thalweg.server.pooling import work
from thalweg.server.pooling.protocol import EmbeddingRequest
from thalweg.server.pooling.work import PoolingJob


async def embeddings(serving: Serving, http: Request) -> Response:
    request, ticket = await work.read(serving, http, EmbeddingRequest)
    params = PoolingParams(task="embed", dimensions=request.dimensions, use_activation=request.use_activation)
    prompts = await work.inputs(serving, request, ticket.tenant)
    job = work.job(serving, "embd", http, request, prompts, params, ticket)
    return await work.answer(http, _body(serving, request, job))


async def _body(serving: Serving, request: EmbeddingRequest, job: PoolingJob) -> bytes:
    outputs = await work.run(serving, job)

    def entry(i: int, output: work.Output) -> dict[str, Any]:
        return {"index": i, "object": "embedding", "embedding": encode_array(request, output.outputs.data)}

    return await work.serialize_outputs(work.list_response(job, None, work.usage(serving, outputs)), outputs, entry)


def encode_array(request: EmbeddingRequest, data: np.ndarray) -> Any:
    """f32[N] as the request wants it written: numbers, each the shortest that rounds back to it, or bytes in base64."""
    if request.encoding_format != "base64":
        return data
    order = sys.byteorder if request.endianness == "native" else request.endianness
    kind = np.dtype(request.embed_dtype).newbyteorder("<" if order == "little" else ">")
    return base64.b64encode(data.astype(kind).tobytes()).decode("ascii")
