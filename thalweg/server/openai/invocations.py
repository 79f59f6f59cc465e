"""/invocations: the route that a body's form tells, for platforms that call every model by one address."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError
from thalweg.server.http.bodies import load

FORMS = (
    (("messages",), ("/v1/chat/completions", "/v1/embeddings", "/classify", "/pooling")),
    (("prompt",), ("/v1/completions",)),
    (("input",), ("/v1/embeddings", "/classify", "/pooling")),
    (("query", "documents"), ("/rerank",)),
    (("text_1", "text_2"), ("/score",)),
    (("queries", "documents"), ("/score",)),
    (("queries", "items"), ("/score",)),
    (("data_1", "data_2"), ("/score",)),
)
"""Fields that a body has, and the routes for it: the first that the served model has something to give for."""


async def invocations(serving: Serving, http: Request) -> Response:
    def path(body: dict[str, Any]) -> str:
        for names, paths in FORMS:
            if all(n in body for n in names):
                found = next((p for p in paths if p in serving.lines.endpoints), None)
                if found is not None:
                    return found
        forms = ", ".join(" and ".join(names) for names, paths in FORMS if any(p in serving.lines.endpoints for p in paths))
        raise ApiError(f"the body is none that this model answers; it has one of: {forms}")

    data = await serving.bodies.raw(http, serving.bodies.limit)
    where = await serving.bodies.read(len(data), lambda: path(load(data, serving.bodies.values)))
    again: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> Message:
        return again.pop() if again else await http.receive()

    return await serving.lines.endpoints[where](Request({**http.scope, "path": where}, receive))
