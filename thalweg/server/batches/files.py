"""/v1/files: sent as multipart/form-data, listed, read and deleted."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.batches.kept import kept_by, page
from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import respond
from thalweg.server.http.middleware import owner_of
from thalweg.server.http.multipart import boundary_of, parts_of

MOST_LISTED = 10_000
OVERHEAD = 64 * 1024
"""Bytes of a body beside its file."""


async def upload(serving: Serving, http: Request) -> Response:
    files = kept_by(serving).files
    if not files.limit:
        raise ApiError("this server keeps no files (--files-store-bytes 0)", "file", 404)
    boundary = boundary_of(http.headers.get("content-type", ""))
    data = await serving.bodies.raw(http, files.limit + OVERHEAD)
    parts = await asyncio.to_thread(parts_of, data, boundary)
    purpose, file = parts.get("purpose"), parts.get("file")
    if purpose is None or purpose.data != b"batch":
        raise ApiError("purpose: must be batch; files serve nothing else here", "purpose")
    if file is None or file.filename is None:
        raise ApiError("file: required field is missing", "file")
    if any(name.startswith("expires_after") for name in parts):
        raise ApiError("expires_after: files stay until they are deleted; leave it out", "expires_after")
    return respond(files.add(owner_of(http.scope), file.filename[:512], "batch", file.data).said())


async def listing(serving: Serving, http: Request) -> Response:
    purpose = http.query_params.get("purpose")
    found = [f.said() for f in kept_by(serving).files.of(owner_of(http.scope)) if purpose in (None, f.purpose)]
    return respond(page(http, found, MOST_LISTED, MOST_LISTED))


async def retrieve(serving: Serving, http: Request) -> Response:
    return respond(kept_by(serving).files.get(owner_of(http.scope), http.path_params["id"]).said())


async def content(serving: Serving, http: Request) -> Response:
    files = kept_by(serving).files
    file = files.get(owner_of(http.scope), http.path_params["id"])
    return Response(await asyncio.to_thread(files.read, file), media_type="application/octet-stream")


async def delete(serving: Serving, http: Request) -> Response:
    files = kept_by(serving).files
    file = files.get(owner_of(http.scope), http.path_params["id"])
    files.delete(file)
    return respond({"id": file.id, "object": "file", "deleted": True})
