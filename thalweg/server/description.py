"""The API described: /openapi.json and the pages that show it. Made when somebody looks, because the framework that makes them
takes longer to import than everything else the server does at its start.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

import thalweg

DOCUMENT, DOCS, REDOC = "/openapi.json", "/docs", "/redoc"
PAGES = (DOCUMENT, DOCS, REDOC, f"{DOCS}/oauth2-redirect")
"""The last comes with the second."""


@dataclass(frozen=True, slots=True)
class Described:
    """One route: POST where it takes a body, else GET. Bodies are read by hand, within bounds; `body` describes them."""

    path: str
    endpoint: Callable[[Request], Awaitable[Response]]
    body: Any = None
    """A pydantic model."""

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"

    def route(self) -> Route:
        return Route(self.path, self.endpoint, methods=[self.method])  # adds HEAD to GET

    def extra(self) -> dict[str, Any]:
        """What the document says beyond the path."""
        names = re.findall(r"{(\w+)", self.path)
        said: dict[str, Any] = {}
        if names:
            text = {"type": "string"}
            said["parameters"] = [{"name": n, "in": "path", "required": True, "schema": text} for n in names]
        if self.body is not None:
            form = self.body.model_json_schema(ref_template="#/components/schemas/{model}")
            form.pop("$defs", None)
            said["requestBody"] = {"required": True, "content": {"application/json": {"schema": form}}}
        return said


def pages_of(described: list[Described]) -> list[BaseRoute]:
    """Routes of the pages that describe these."""
    pages = _Pages(described)
    return [Route(path, pages) for path in PAGES]


class _Pages:
    """The application behind those routes."""

    def __init__(self, described: list[Described]) -> None:
        self._described = described
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            self._app = await asyncio.to_thread(self._make)
        await self._app(scope, receive, send)

    def _make(self) -> ASGIApp:
        from fastapi import FastAPI

        app = FastAPI(title="thalweg", version=thalweg.__version__, openapi_url=DOCUMENT, docs_url=DOCS, redoc_url=REDOC)
        for d in self._described:
            app.add_api_route(d.path, d.endpoint, methods=[d.method], openapi_extra=d.extra())
        return app
