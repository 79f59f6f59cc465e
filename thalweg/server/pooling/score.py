"""/score: how well texts go together, in pairs: one with one, one with each of many, or each with its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from thalweg.engine.client.pairs import ScoredItem, check_media_pairs, match_texts, read_scored_item
from thalweg.engine.client.pooling_outputs import likeness
from thalweg.engine.client.rankings import Rankings, find_rankings
from thalweg.params import PoolingParams
from thalweg.server.core.admission import Ticket
from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError
from thalweg.server.pooling import work
from thalweg.server.pooling.protocol import SIDES, PairRequest, ScoreRequest
from thalweg.server.pooling.work import PoolingJob
from thalweg.text.pair_forms import FORMS


async def score(serving: Serving, http: Request) -> Response:
    request, ticket = await work.read(serving, http, ScoreRequest)
    names = next(s for s in SIDES if getattr(request, s[0]) is not None and getattr(request, s[1]) is not None)
    first, second = (_read_items(getattr(request, name), name) for name in names)
    which = match_texts(len(first), len(second), names)
    pairs = Pairs(serving, which)
    job = await pairs.job("score", http, request, (first, second), names, ticket)
    return await work.answer(http, _body(serving, job, pairs))


async def _body(serving: Serving, job: PoolingJob, pairs: Pairs) -> bytes:
    outputs = await work.run(serving, job)
    scores = await pairs.compute_scores(outputs)
    data = [{"index": i, "object": "score", "score": s} for i, s in enumerate(scores)]
    return orjson.dumps(work.list_response(job, data, work.usage(serving, outputs)))


def _read_items(given: Any, name: str) -> list[ScoredItem]:
    if not isinstance(given, list):
        return [read_scored_item(given, name)]
    return [read_scored_item(item, f"{name}[{i}]") for i, item in enumerate(given)]


class Pairs:
    """Pairs of items as the model scores them: read together by one that was trained to, or compared by their vectors."""

    def __init__(self, serving: Serving, which: Sequence[tuple[int, int]]) -> None:
        """which: indices of the items of each pair, in the first list and in the second."""
        pooling = serving.engine.config.model.pooling
        assert pooling is not None
        self._serving, self._which, self._apart = serving, which, pooling.task == "embed"
        self._firsts = 0
        self._rankings: Rankings | None = None

    async def job(
        self, kind: str, http: Request, request: PairRequest, items: tuple[list[ScoredItem], list[ScoredItem]],
        names: tuple[str, str], ticket: Ticket, most: tuple[int, int] = (0, 0),
    ) -> PoolingJob:  # fmt: skip
        """most: kept tokens of a text, by list. 0: all."""
        serving, shape = self._serving, work.cut_of(self._serving, request)
        pooling = serving.engine.config.model.pooling
        assert pooling is not None
        self._rankings = find_rankings(pooling.form, self._which, shape is not None)
        form = FORMS.get(pooling.form)
        if request.instruction and self._rankings is None and (form is None or form.instruction is None):
            raise ApiError(
                "instruction: this model's pairs have no place for one; send a query that begins with it", "instruction"
            )
        if self._apart and request.use_activation is not None:
            raise ApiError(
                "use_activation: this model's scores compare vectors of length one; remove the field", "use_activation"
            )
        has_media = check_media_pairs([*items[0], *items[1]], serving.engine.media, pooling)
        if has_media and most != (0, 0):
            raise ApiError(
                "max_tokens_per_doc: not supported with media; remove it and max_tokens_per_query", "max_tokens_per_doc"
            )
        if self._rankings is not None:
            texts = [item.text for item in items[0]], [item.text for item in items[1]]
            prompts = await work.rankings_read(
                serving, self._rankings, texts, names[0], ticket.tenant, most, request.instruction
            )
        elif self._apart:
            prompts = []
            for side, name, n in zip(items, names, most, strict=True):
                if has_media:
                    prompts += await work.media_prompts(serving, side, name, shape)
                else:
                    plain = [item.text for item in side]
                    prompts += await work.texts_prompts(serving, plain, name, shape, ticket.tenant, n)
            self._firsts = len(items[0])
        elif has_media:
            prompts = await work.media_pairs(serving, items, self._which, names, shape, request.instruction)
        else:
            pairs = [(items[0][i].text, items[1][j].text) for i, j in self._which]
            prompts = await work.pairs_read(serving, pairs, names[1], shape, ticket.tenant, most, request.instruction)
        params = PoolingParams(task="score", use_activation=request.use_activation)
        return work.job(serving, kind, http, request, prompts, params, ticket)

    async def compute_scores(self, outputs: Sequence[work.Output]) -> list[float]:
        """Of each pair, in order. Slow work runs on a thread."""
        heavy = self._apart and sum(o.outputs.data.size for o in outputs) > work.HEAVY
        return await asyncio.to_thread(self.scores, outputs) if heavy else self.scores(outputs)

    def scores(self, outputs: Sequence[work.Output]) -> list[float]:
        """Of each pair, in order."""
        data = [o.outputs.data for o in outputs]
        if self._rankings is not None:
            ids = [o.prompt_token_ids for o in outputs]
            return self._rankings.scores(self._serving.tokenizer("query"), list(zip(ids, data, strict=True)))
        if not self._apart:
            return [float(d[0]) for d in data]
        return [likeness(data[i], data[self._firsts + j]) for i, j in self._which]
