"""Description of the API: /openapi.json, and a page that shows it without requests to other hosts. Made on first request."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import thalweg
from thalweg.plugins import import_attribute
from thalweg.server.http.answer import respond

DOCUMENT, DOCS, REDOC = "/openapi.json", "/docs", "/redoc"
PAGES = (DOCUMENT, DOCS, REDOC)
EVENTS = "text/event-stream"
REFUSALS = {
    400: "The request is wrong; `param` names the field",
    401: "The API key is missing or wrong",
    404: "There is no such model or route",
    413: "The body is too long",
    415: "The body is not JSON",
    429: "The server is busy; `Retry-After` says when to come again",
    500: "The server failed; its log says why",
    503: "Not ready, restarting or shutting down; `Retry-After` says when to come again",
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
        }
    },
}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Content-Security-Policy of the page."""


@dataclass(frozen=True, slots=True)
class RouteDescription:
    """One route: POST with a body, otherwise GET. Bodies are parsed by the route itself, within bounds. `bodies` has their
    models."""

    path: str
    endpoint: Callable[[Request], Awaitable[Response]]
    bodies: tuple[Any, ...] = ()
    """Pydantic models, of which a body is one. Or "module:class", imported when somebody asks for the description."""
    says: str = ""
    kinds: tuple[str, ...] = ("application/json",)
    """Content types of the answer."""
    needs: str = ""
    """The required ability of the model (`ModelConfig.tasks`). "": none."""
    other_method: str = ""
    """Another method, if any."""
    form: Any = None
    """Model of a form's fields, for a form with a file, or "module:class"."""

    @property
    def method(self) -> str:
        return self.other_method or ("POST" if self.bodies else "GET")

    def route(self) -> Route:
        return Route(self.path, self.endpoint, methods=[self.method])  # adds HEAD to GET

    def operation(self, definitions: dict[str, Any]) -> dict[str, Any]:
        """Its operation object. Schemas it refers to are added to `definitions`."""
        name = re.sub(r"\W+", "_", re.sub(r":\w+", "", self.path)).strip("_")
        operation: dict[str, Any] = {"operationId": f"{name}_{self.method.lower()}", "summary": self.says or self.path}
        if names := re.findall(r"{(\w+)", self.path):
            text = {"type": "string"}
            operation["parameters"] = [{"name": n, "in": "path", "required": True, "schema": text} for n in names]
        forms = [_schema(body, definitions) for body in self.bodies]
        if forms:
            form = forms[0] if len(forms) == 1 else {"anyOf": forms}
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": form}}}
        if self.form:
            file = {"type": "object", "required": ["file"], "properties": {"file": {"type": "string", "format": "binary"}}}
            parts = {"schema": {"allOf": [_schema(self.form, definitions), file]}}
            operation["requestBody"] = {"required": True, "content": {"multipart/form-data": parts}}
        operation["responses"] = {"200": {"description": "The answer", "content": {k: _answer(k) for k in self.kinds}}}
        refused = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
        for status, words in REFUSALS.items():
            if forms or self.form or status in (401, 404, 500, 503):
                operation["responses"][str(status)] = {"description": words, "content": refused}
        return operation


def _answer(kind: str) -> dict[str, Any]:
    return {"schema": {"type": "object" if kind == "application/json" else "string"}}


def _schema(model: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if isinstance(model, str):
        model = import_attribute(model)
    form: dict[str, Any] = model.model_json_schema(ref_template="#/components/schemas/{model}")
    form = _standard(form)
    definitions.update(form.pop("$defs", {}))
    return form


BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""Pydantic's words for bounds, which it keeps on fields that may be written as text, and JSON Schema's."""
SIZES = {"maxLength": "maxProperties", "minLength": "minProperties"}
"""Its words for the size of objects."""


def _standard(form: Any) -> Any:
    """The same, only in the words of JSON Schema."""
    if isinstance(form, list):
        return [_standard(f) for f in form]
    if not isinstance(form, dict):
        return form
    words = {**BOUNDS, **(SIZES if form.get("type") == "object" else {})}
    return {words.get(k, k) if isinstance(v, int | float) else k: _standard(v) for k, v in form.items()}


def document(described: list[RouteDescription]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    schemas: dict[str, Any] = {"Error": ERROR}
    paths: dict[str, dict[str, Any]] = {}
    for d in described:
        paths.setdefault(re.sub(r":\w+}", "}", d.path), {})[d.method.lower()] = d.operation(schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "thalweg", "version": thalweg.__version__},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def pages_of(described: list[RouteDescription]) -> list[BaseRoute]:
    """Routes of the document and of the page that shows it."""
    result: dict[str, Any] = {}

    async def _describe() -> dict[str, Any]:
        """On a thread the first time: it costs half a second."""
        if not result:
            result.update(await asyncio.to_thread(document, described))
        return result

    async def _document(request: Request) -> Response:
        return respond(await _describe())

    async def _page(request: Request) -> Response:
        body = page(await _describe(), request.scope.get("root_path", "") + DOCUMENT)
        return Response(body, media_type="text/html", headers={"Content-Security-Policy": POLICY})

    return [Route(DOCUMENT, _document), Route(DOCS, _page), Route(REDOC, _page)]


# ---------------------------------------------------------------- the page

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{font-family:ui-monospace,monospace}table{border-collapse:collapse}"
    "td{border-top:1px solid #ccc;padding:.2rem 1rem .2rem 0;vertical-align:top}summary{cursor:pointer;margin:.5rem 0}"
)


def page(described: dict[str, Any], address: str) -> str:
    """The document as HTML without scripts: routes, and the fields of their bodies."""
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>thalweg</title><style>{STYLE}</style><h1>thalweg '
        f'{html.escape(described["info"]["version"])}</h1><p>The API as a document: <a href="{html.escape(address)}">'
        f"{html.escape(address)}</a></p>"
    ]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<details><summary><code>{method.upper()} {html.escape(path)}</code> ")
            parts.append(f"{html.escape(operation['summary'])}</summary><table>")
            parts += (f"<tr><td><code>{html.escape(n)}</code><td>{html.escape(t)}" for n, t in _fields(operation))
            parts.append("</table></details>")
    return "".join(parts) + "</html>"


def _fields(operation: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, type in words) of the fields of its body's forms."""
    form = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    for one in form.get("anyOf", [form]):
        for name, field in one.get("properties", {}).items():
            yield name, _words(field) + (", required" if name in one.get("required", ()) else "")


def _words(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_words(f) for f in field["anyOf"]))
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "enum" in field or "const" in field:
        return ", ".join(map(str, field.get("enum", [field.get("const")])))
    kind = str(field.get("type", "any"))
    return f"list of {_words(field.get('items', {}))}" if kind == "array" else kind
