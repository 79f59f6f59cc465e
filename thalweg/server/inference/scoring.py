"""/generative_scoring: how probable a generating model finds a token, for each of several items."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from thalweg.engine.client.prompt_ids import check_ids
from thalweg.params import RequestOutputKind, SamplingParams
from thalweg.server.core.admission import Ticket
from thalweg.server.core.schema import MAX_PROMPTS, Flag, RequestFields, Text, TokenId, TokenIds
from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import or_disconnect, respond

MOST_LABELS = 64


class ScoringRequest(RequestFields):
    query: Text | TokenIds
    items: Annotated[list[Text], Field(max_length=MAX_PROMPTS)] | Annotated[list[TokenIds], Field(max_length=MAX_PROMPTS)]
    label_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=MOST_LABELS)]
    apply_softmax: Flag = True
    item_first: Flag = False
    add_special_tokens: Flag = True


async def generative_scoring(serving: Serving, http: Request) -> Response:
    request, ticket = await serving.read(http, lambda body: serving.fields.parse(ScoringRequest, body))
    serving.model_name(request.model)
    _check(serving, request)
    prompts = await _prompts(serving, request, ticket.tenant)
    body = await or_disconnect(http.receive, _score_labels(serving, http, request, prompts, ticket))
    return Response(status_code=499) if body is None else respond(body)


def _check(serving: Serving, request: ScoringRequest) -> None:
    if not request.items:
        raise ApiError("items: must not be empty", "items")
    if len(set(request.label_token_ids)) < len(request.label_token_ids):
        raise ApiError("label_token_ids: each may be named once", "label_token_ids")
    model = serving.engine.config.model
    for i, token in enumerate(request.label_token_ids):
        if token >= model.vocab:
            where = f"label_token_ids[{i}]"
            raise ApiError(f"{where}: {token} is outside the vocabulary of {model.vocab}", where)
    if model.logprobs_mode != "raw_logprobs":
        raise ApiError(f"label_token_ids: needs raw_logprobs, and this server has --logprobs-mode {model.logprobs_mode}")


async def _prompts(serving: Serving, request: ScoringRequest, tenant: str) -> list[dict[str, Any]]:
    """The query's tokens and each item's, of which the first has the special tokens."""
    first = not request.item_first

    async def ids(texts: Sequence[str] | Sequence[list[int]], special: bool, where: Sequence[str]) -> list[list[int]]:
        given = [t for t in texts if isinstance(t, str)]
        if not given:
            found = [t for t in texts if not isinstance(t, str)]
            for name, each in zip(where, found, strict=True):
                check_ids(name, each, serving.engine.config.model.vocab)
            return found
        return await serving.encode(given, special and request.add_special_tokens, tenant=tenant)

    only: Any = [request.query]
    (query,) = await ids(only, first, ["query"])
    items = await ids(request.items, not first, [f"items[{i}]" for i in range(len(request.items))])
    return [{"prompt_token_ids": query + item if first else item + query} for item in items]


async def _score_labels(
    serving: Serving, http: Request, request: ScoringRequest, prompts: list[dict[str, Any]], ticket: Ticket
) -> dict[str, Any]:
    """A step for each label, in sequence: the chosen token's log-probability is exact, whatever its rank. The prompts are in
    the cache after the first."""
    found: list[list[float]] = [[] for _ in prompts]
    used: list[dict[str, Any]] = []
    for label in request.label_token_ids:
        params = SamplingParams(
            max_tokens=1, temperature=0, logprobs=0, allowed_token_ids=[label], detokenize=False, ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip
        job = serving.job("score", http, request, [dict(p) for p in prompts], params, ticket)
        outputs = await serving.run(job)
        used.append(serving.total_usage(job, outputs))
        for scores, output in zip(found, outputs, strict=True):
            positions = output.outputs[0].logprobs
            assert positions
            scores.append(positions[0][label].logprob)
    data = [{"index": i, "object": "score", "score": _score(s, request.apply_softmax)} for i, s in enumerate(found)]
    usage = used[0] | {"completion_tokens": len(prompts) * len(used)}
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
    return {"id": job.id, "object": "list", "created": job.created, "model": job.model, "data": data, "usage": usage}


def _score(scores: list[float], normalised: bool) -> float:
    """Probability of the first label: among the labels, or among all tokens."""
    if not normalised:
        return math.exp(scores[0])
    most = max(scores)
    return math.exp(scores[0] - most) / sum(math.exp(s - most) for s in scores)
