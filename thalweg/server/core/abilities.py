"""Routes that the served model has nothing to give for: refused at once, with a sentence that says which models have."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.errors import ApiError
from thalweg.server.http.answer import failure

if TYPE_CHECKING:
    from thalweg.server.core.serving import Serving
    from thalweg.server.description import Described

ROUTES = {
    "generate": "/v1/completions, /v1/chat/completions", "embed": "/v1/embeddings, /pooling", "classify": "/classify, /pooling",
    "score": "/score, /rerank",
}  # fmt: skip
"""Where a model that can do this is asked for it."""
NEEDED = {
    "generate": "a model that generates text (...ForCausalLM, served without --runner pooling)",
    "embed": "a model that gives vectors: a text encoder such as BERT, or one that generates, served with --runner pooling",
    "classify": "a model with a head that classifies (...ForSequenceClassification)",
    "score": "a reranker (...ForSequenceClassification with one class), or a model that gives vectors",
    "pool": "a model that gives vectors or classes",
}
"""Which models a route is for, by what it needs."""


def able(serving: Serving, needs: str) -> bool:
    """Can the model do what a route needs (`Described.needs`)?"""
    tasks = serving.engine.config.model.tasks
    return not needs or needs in tasks or (needs == "pool" and "generate" not in tasks)


def refusing(serving: Serving, route: Described) -> Described:
    """The route, refusing whatever is asked where the model cannot do what it needs."""
    if able(serving, route.needs):
        return route
    tasks = serving.engine.config.model.tasks
    words = f"model: {route.path} needs {NEEDED[route.needs]}; the model here is asked at {', '.join(ROUTES[t] for t in tasks)}"

    async def refused(request: Request) -> Response:
        return failure(ApiError(words, "model"))

    return replace(route, endpoint=refused)
