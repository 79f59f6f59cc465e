"""/rerank, /v1/rerank, /v2/rerank: documents in order of how well they answer a query, as Jina's and Cohere's clients ask."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from thalweg.engine.client.pairs import read_scored_item
from thalweg.server.core.serving import Serving
from thalweg.server.pooling import work
from thalweg.server.pooling.protocol import RerankRequest
from thalweg.server.pooling.score import Pairs
from thalweg.server.pooling.work import PoolingJob


async def rerank(serving: Serving, http: Request) -> Response:
    request, ticket = await work.read(serving, http, RerankRequest)
    query = read_scored_item(request.query, "query")
    documents = [read_scored_item(d, f"documents[{i}]") for i, d in enumerate(request.documents)]
    pairs = Pairs(serving, [(0, i) for i in range(len(documents))])
    most = (request.max_tokens_per_query, request.max_tokens_per_doc)
    job = await pairs.job("rerank", http, request, ([query], documents), ("query", "documents"), ticket, most)
    return await work.answer(http, _body(serving, request, job, pairs))


async def _body(serving: Serving, request: RerankRequest, job: PoolingJob, pairs: Pairs) -> bytes:
    outputs = await work.run(serving, job)
    scores = await pairs.compute_scores(outputs)
    best = sorted(range(len(scores)), key=lambda i: -scores[i])[: request.top_n or None]
    results = [
        {
            "index": i,
            **({"document": _echo(request.documents[i])} if request.return_documents else {}),
            "relevance_score": scores[i],
        }
        for i in best
    ]
    return orjson.dumps({"id": job.id, "model": job.model, "usage": work.usage(serving, outputs), "results": results})


def _echo(document: Any) -> dict[str, Any]:
    """A document of the request as vLLM returns it: its text, or the parts of its content."""
    if isinstance(document, str):
        return {"text": document}
    return {"text": document["text"]} if isinstance(document.get("text"), str) else {"multi_modal": document["content"]}
