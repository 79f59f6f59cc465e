"""/kv_event_sources: the addresses of KV events, for routers."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.core.serving import Serving
from thalweg.server.http.answer import respond
from thalweg.server.operators.query import check_query

WILDCARDS = ("//*:", "//0.0.0.0:", "//[::]:")


async def kv_event_sources(serving: Serving, http: Request) -> Response:
    """A list with an entry for each engine. An address of every interface is given as the one that this request came to."""
    check_query(http, ())
    return respond(await sources_of(serving, http))


async def sources_of(serving: Serving, http: Request) -> list[dict[str, Any]]:
    """The addresses of one model's engines, as the client of `http` reaches them."""
    host = str((http.scope.get("server") or ("127.0.0.1",))[0])
    sources = await serving.engine.get_kv_event_sources()
    for source in sources:
        for name in ("endpoint", "replay_endpoint"):
            source[name] = _reachable(source[name], host)
    return sources


def _reachable(endpoint: str | None, host: str) -> str | None:
    for wildcard in WILDCARDS if endpoint is not None else ():
        endpoint = endpoint.replace(wildcard, f"//{f'[{host}]' if ':' in host else host}:")  # type: ignore[union-attr]
    return endpoint
