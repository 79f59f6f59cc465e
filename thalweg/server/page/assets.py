"""The page's own files. They hold no secret, so they are answered without a key: the page has a field for it."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

ROOT, FOLDER = "/", "/page/"
INDEX = "index.html"
KINDS = {
    INDEX: "text/html",
    "icon.svg": "image/svg+xml",
    "style.css": "text/css",
    **dict.fromkeys(("app.js", "markdown.js", "store.js", "stream.js", "theme.js", "view.js"), "text/javascript"),
}
"""Content types by file name. No other file is served."""
FIELDS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""No script but these files runs in the page, and no other server is asked for anything."""


@cache
def _read(name: str) -> tuple[bytes, str]:
    """A file's bytes, and its entity tag."""
    data = resources.files(__package__).joinpath("files", name).read_bytes()
    return data, f'"{hashlib.sha256(data).hexdigest()[:16]}"'


def is_asset(scope: Scope, root_path: str = "") -> bool:
    """Does this request ask for a file of the page?"""
    path = scope["path"].removeprefix(root_path)
    if scope["method"] not in ("GET", "HEAD"):
        return False
    return path.removeprefix(FOLDER) in KINDS or (path in ("", ROOT) and _shows_pages(scope))


def _shows_pages(scope: Scope) -> bool:
    """Is it a browser that goes somewhere, rather than a client that asks whether somebody is here?"""
    return any(k == b"accept" and b"text/html" in v for k, v in scope["headers"])


def routes() -> list[BaseRoute]:
    async def _root(http: Request) -> Response:
        if not _shows_pages(http.scope):
            return await root(http)
        return _answer(http, INDEX)

    async def _asset(http: Request) -> Response:
        if http.path_params["name"] not in KINDS:
            raise HTTPException(404)
        return _answer(http, http.path_params["name"])

    return [Route(ROOT, _root), Route(FOLDER + "{name}", _asset)]


def _answer(http: Request, name: str) -> Response:
    data, tag = _read(name)
    fields = {**FIELDS, "ETag": tag, "Vary": "Accept"} if name == INDEX else {**FIELDS, "ETag": tag}
    if http.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=fields)
    return Response(data, media_type=KINDS[name], headers=fields)


async def root(http: Request) -> Response:
    """`/` without the page: clients ask whether somebody is here."""
    if http.method == "HEAD":
        return Response()
    raise HTTPException(404)
