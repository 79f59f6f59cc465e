"""/v1/files: sent as multipart/form-data, listed, read and deleted."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.batches.registry import kept_by, page
from thalweg.server.core.context import ServerContext
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import Download, respond
from thalweg.server.http.middleware import owner_of
from thalweg.server.http.multipart import boundary_of, file_of

MOST_LISTED = 10_000
OVERHEAD = 64 * 1024
"""Bytes of a body besides its file."""


async def upload(serving: ServerContext, http: Request) -> Response:
    files = kept_by(serving).files
    if not files.limit:
        raise ApiError("this server keeps no files (--files-store-bytes 0)", "file", 404)
    boundary = boundary_of(http.headers.get("content-type", ""))
    owner = owner_of(http.scope)
    if (length := http.headers.get("content-length", "")).isdecimal():
        files.check(owner, int(length) - OVERHEAD)
    data = await serving.bodies.raw(http, files.limit + OVERHEAD)
    name, fields = await asyncio.to_thread(file_of, data, boundary, "file")
    if fields.get("purpose") != b"batch":
        raise ApiError("purpose: must be batch; files serve nothing else here", "purpose")
    if name is None:
        raise ApiError("file: required field is missing", "file")
    if any(field.startswith("expires_after") for field in fields):
        raise ApiError("expires_after: files stay until they are deleted; remove the field", "expires_after")
    return respond((await files.add(owner, name[:512], "batch", data)).describe())


async def listing(serving: ServerContext, http: Request) -> Response:
    purpose = http.query_params.get("purpose")
    found = [f for f in kept_by(serving).files.of(owner_of(http.scope)) if purpose in (None, f.purpose)]
    return respond(page(http, found, MOST_LISTED, MOST_LISTED))


async def retrieve(serving: ServerContext, http: Request) -> Response:
    return respond(kept_by(serving).files.get(owner_of(http.scope), http.path_params["id"]).describe())


async def content(serving: ServerContext, http: Request) -> Response:
    files = kept_by(serving).files
    file = files.get(owner_of(http.scope), http.path_params["id"])
    files.use(file)
    http.scope["thalweg.visit"].at_end(lambda: files.leave(file))
    return Download(file.size, files.pieces(file, file.size))


async def delete(serving: ServerContext, http: Request) -> Response:
    files = kept_by(serving).files
    file = files.get(owner_of(http.scope), http.path_params["id"])
    files.delete(file)
    return respond({"id": file.id, "object": "file", "deleted": True})
