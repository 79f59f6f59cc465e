"""/v1/models: the served models, by all their names."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.core.serving import Serving
from thalweg.server.http.answer import respond


async def models(serving: Serving, http: Request) -> Response:
    names = [*serving.engine.model_names, *serving.adapters.names()]
    return respond({"object": "list", "data": [_card(serving, name) for name in names]})


async def model(serving: Serving, http: Request) -> Response:
    return respond(_card(serving, serving.model_name(http.path_params["name"])))


def _card(serving: Serving, name: str) -> dict[str, Any]:
    base, adapter = serving.engine.model_names[0], serving.adapters.find(name)
    root = base if adapter is None else adapter.root
    parent = None if adapter is None else adapter.request.base_model_name or base
    return describe_model(name, root, parent, serving.created, serving.engine.config.model.max_len)


def describe_model(name: str, root: str, parent: str | None, created: int, max_len: int) -> dict[str, Any]:
    """A card. parent: the model of an adapter."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "thalweg",
        "root": root,
        "parent": parent,
        "max_model_len": max_len,
    }
