"""Routes of a server with several models that differ from those of one model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

import thalweg
from thalweg.server.core.query import whole
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import respond
from thalweg.server.http.middleware import owner_of
from thalweg.server.inference.abort import abort_of, read_abort
from thalweg.server.openai.models import describe_model
from thalweg.server.operators import kv_events, why
from thalweg.server.operators.query import check_query
from thalweg.server.operators.sleep import check_tags
from thalweg.server.router.residency import SLEEPING

if TYPE_CHECKING:
    from thalweg.server.router.dispatch import ModelRouter
    from thalweg.server.router.models import ServedModel

INVOCATIONS = "/invocations"
MISSING = "model: name the model, as in ?model=NAME"


async def models(router: ModelRouter, http: Request) -> Response:
    return respond({"object": "list", "data": [c for m in router.models for c in _cards(router, m)]})


async def model(router: ModelRouter, http: Request) -> Response:
    name = http.path_params["name"]
    return respond(next(c for c in _cards(router, router.find(name)) if c["id"] == name))


def _cards(router: ModelRouter, model: ServedModel) -> list[dict[str, Any]]:
    """A card of each name. `status` has the form of llama.cpp's router: loaded, loading, unloaded, unloading or sleeping."""
    base, status = model.entry.names[0], {"value": model.status, "pinned": model.pinned}
    length = model.entry.max_model_len if model.serving is None else model.serving.engine.config.model.max_len
    cards = [describe_model(name, base, None, router.context.created, length) for name in model.entry.names]
    for name in model.adapter_names:
        adapter = None if model.serving is None else model.serving.adapters.find(name)
        root = base if adapter is None else adapter.root
        parent = base if adapter is None else adapter.request.base_model_name or base
        cards.append(describe_model(name, root, parent, router.context.created, length))
    return [{**card, "status": status} for card in cards]


def _find_model(router: ModelRouter, http: Request) -> ServedModel:
    name = http.query_params.get("model")
    if not name:
        raise ApiError(MISSING, "model")
    return router.find(name)


async def sleep(router: ModelRouter, http: Request) -> Response:
    """Its memory is released until it is woken. Requests for it wait."""
    check_query(http, ("level", "mode", "model"))
    model, level, mode = _find_model(router, http), whole(http, "level", 1), http.query_params.get("mode", "abort")

    async def unload() -> None:
        if model.engine is not None:
            await model.engine.sleep(level, mode)

    if not level:
        raise ApiError("level: 0 only pauses; use /pause?model=NAME", "level")
    await router.residency.sleep(model, unload)
    return respond({"status": "sleeping"})


async def wake_up(router: ModelRouter, http: Request) -> Response:
    """Answered when the model serves."""
    check_query(http, ("tags", "model"))
    check_tags(http)
    await router.residency.wake_up(_find_model(router, http))
    return respond({"status": "awake"})


async def is_sleeping(router: ModelRouter, http: Request) -> Response:
    """Without `model`: do all models sleep?"""
    requested = [_find_model(router, http)] if "model" in http.query_params else router.models
    return respond({"is_sleeping": all(model.status == SLEEPING for model in requested)})


async def abort_requests(router: ModelRouter, http: Request) -> Response:
    """Of every model."""
    request = await read_abort(router.context, http)
    counts = [await abort_of(m.serving, request, owner_of(http.scope)) for m in router.models if m.serving is not None]
    return respond({"aborted": sum(counts)})


async def why_waited(router: ModelRouter, http: Request) -> Response:
    """By the model that had the request."""
    tenant, name = str(http.scope.get("thalweg.tenant", "")), http.path_params["id"]
    requested = [m.serving for m in router.models if m.serving is not None]
    serving = next((s for s in requested if s.recent.find(name, tenant) is not None), None)
    if serving is None:
        raise ApiError(why.UNKNOWN.format(name[:80]), "id", 404)
    return await why.why(serving, http)


async def kv_event_sources(router: ModelRouter, http: Request) -> Response:
    """Of every model that was loaded."""
    check_query(http, ())
    return respond([s for m in router.models if m.serving is not None for s in await kv_events.sources_of(m.serving, http)])


async def page_state(router: ModelRouter, http: Request) -> Response:
    """The web page's data. It loads no model."""
    body = {
        "models": router.names(),
        "generates": True,
        "chat": True,
        "suggestions": [],
        "facts": {"Models": str(len(router.models)), "Version": thalweg.__version__},
        "sampling": {},
        "state": "draining" if router.context.lifecycle.draining else "ready",
        "reason": router.context.lifecycle.why_not_ready(),
        "gauges": None,
    }
    response = respond(body)
    response.headers["cache-control"] = "no-store"
    return response


ROUTES: dict[str, Callable[[Any, Request], Awaitable[Response]]] = {
    "/v1/models": models,
    "/v1/models/{name:path}": model,
    "/sleep": sleep,
    "/wake_up": wake_up,
    "/is_sleeping": is_sleeping,
    "/abort_requests": abort_requests,
    "/v1/requests/{id}/why": why_waited,
    "/kv_event_sources": kv_event_sources,
    "/page/state": page_state,
}
"""By the path of their row in `server.routes`."""
