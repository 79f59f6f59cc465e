"""/v2/embed of Cohere's API: a vector per text, in each of the types that were asked for."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response

from thalweg.params import PoolingParams
from thalweg.server.cohere.protocol import EmbedRequest
from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError
from thalweg.server.pooling import work
from thalweg.server.pooling.protocol import EmbeddingRequest

KINDS = {
    "search_query": ("query",), "search_document": ("document", "passage"), "classification": ("Classification",),
    "clustering": ("Clustering",),
}  # fmt: skip
"""`input_type` -> other names that models' files have for the prompts of such texts."""
SIDES = {"START": "left", "END": "right"}


async def embed(serving: Serving, http: Request) -> Response:
    request, ticket = await serving.read(http, lambda body: serving.fields.parse(EmbedRequest, body))
    serving.model_name(request.model)
    before = _before(serving, request.input_type)
    requested = _embedding_request(serving, request, before or "")
    params = PoolingParams(task="embed", dimensions=request.output_dimension)
    prompts = await work.inputs(serving, requested, ticket.tenant)
    job = work.job(serving, "embd", http, requested, prompts, params, ticket)
    ignored = [*request.ignored_fields, *(["input_type"] if request.input_type and before is None else [])]
    answer = await work.answer(http, _body(serving, request, job))
    if ignored:
        answer.headers["X-Ignored-Fields"] = ", ".join(ignored)
    return answer


def _before(serving: Serving, kind: str | None) -> str | None:
    """The model's prefix for a text of this input_type. None: no prefix."""
    pooling = serving.engine.config.model.pooling
    if kind is None or pooling is None:
        return None
    names = (kind, *KINDS.get(kind, ()))
    return next((pooling.prompts[name] for name in names if name in pooling.prompts), None)


def _embedding_request(serving: Serving, request: EmbedRequest, before: str) -> EmbeddingRequest:
    """The request as /v1/embeddings has it. before: each text."""
    longest = serving.engine.config.model.max_len
    if request.max_tokens is not None and request.truncate == "NONE":
        raise ApiError("max_tokens: with truncate=NONE nothing is cut; leave out one", "max_tokens")
    keep = None if request.truncate == "NONE" else min(request.max_tokens or longest, longest)
    side: Any = SIDES.get(request.truncate)
    return EmbeddingRequest(
        model=request.model,
        input=[before + text for text in request.input_texts],
        truncate_prompt_tokens=keep,
        truncation_side=side,
        priority=request.priority,
    )


async def _body(serving: Serving, request: EmbedRequest, job: work.PoolingJob) -> bytes:
    outputs = await work.run(serving, job)

    def write() -> bytes:
        vectors = [o.outputs.data for o in outputs]
        kinds = dict.fromkeys(request.embedding_types or ["float"])
        body = {
            "id": job.id,
            "embeddings": {kind: [encode_embedding(kind, v) for v in vectors] for kind in kinds},
            "texts": request.input_texts,
            "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": job.prompt_tokens}},
            "response_type": "embeddings_by_type",
        }
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)

    heavy = sum(o.outputs.data.size for o in outputs) > work.HEAVY
    return await asyncio.to_thread(write) if heavy else write()


def encode_embedding(kind: str, vector: np.ndarray) -> Any:
    """f32[N] as `kind` has it. binary and ubinary: a bit for each number, 1 where it is above 0, eight to a number."""
    if kind == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    if kind == "float":
        return vector
    bits = np.packbits(vector > 0).astype(np.int64)
    return (bits if kind == "ubinary" else bits - 128).tolist()
