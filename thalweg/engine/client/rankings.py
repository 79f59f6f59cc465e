"""Pairs of texts for listwise rerankers: a prompt for each query, with all of its documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.errors import RequestError
from thalweg.text.cut import first_tokens
from thalweg.text.ranking_form import FORMS, RankingForm, find_marks, write_ranking
from thalweg.text.tokenizer import Tokenizer


class Rankings:
    """The pairs of one request, by query."""

    def __init__(self, form: RankingForm, which: Sequence[tuple[int, int]]) -> None:
        """which: indices of the texts of each pair."""
        self._form, self._which = form, which
        self._documents: dict[int, list[int]] = {}
        """Query -> the places in `which` of its pairs."""
        for place, (query, _) in enumerate(which):
            self._documents.setdefault(query, []).append(place)

    @property
    def prompt_of_each(self) -> list[int]:
        """The index of each pair's prompt."""
        order = {query: i for i, query in enumerate(self._documents)}
        return [order[query] for query, _ in self._which]

    def prompts(
        self, tokenizer: Tokenizer, texts: tuple[Sequence[str], Sequence[str]], most: tuple[int, int] = (0, 0),
        instruction: str | None = None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """A prompt for each query. most: kept tokens of a text, by side. 0: all."""
        first, second = (
            [first_tokens(tokenizer, text, n) if n else text for text in side] for side, n in zip(texts, most, strict=True)
        )
        result = []
        for query, places in self._documents.items():
            documents = [second[self._which[place][1]] for place in places]
            result.append({"prompt_token_ids": write_ranking(tokenizer, self._form, first[query], documents, instruction)})
        return result

    def scores(self, tokenizer: Tokenizer, results: Sequence[tuple[Sequence[int], np.ndarray]]) -> list[float]:
        """The score of each pair, in order: the cosine of the vectors of a query's token and a document's. results: ids and
        vectors f32[tokens, N] of length one, of each prompt."""
        found = [0.0] * len(self._which)
        for places, (ids, vectors) in zip(self._documents.values(), results, strict=True):
            query, documents = find_marks(tokenizer, self._form, ids)
            for place, score in zip(places, vectors[documents].astype(np.float64) @ vectors[query], strict=True):
                found[place] = float(score)
        return found


def find_rankings(form: str, which: Sequence[tuple[int, int]], cut: bool) -> Rankings | None:
    """The rankings of a listwise reranker. form: as of `Pooling`. cut: the request wants long texts cut. RequestError: that is
    not supported. None: the model reads pairs, or single texts."""
    found = FORMS.get(form)
    if found is None:
        return None
    if cut:
        name = "truncate_prompt_tokens"
        raise RequestError(f"{name}: this model reads all documents at once; send max_tokens_per_doc to /rerank", name)
    return Rankings(found, which)
