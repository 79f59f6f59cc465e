"""A server's files and batches together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from starlette.requests import Request

from thalweg.server.batches.batch import ENDED, Batch, BatchRunner
from thalweg.server.batches.store import FileStore
from thalweg.server.core.context import ServerContext
from thalweg.server.core.lines import LineRunner
from thalweg.server.core.query import whole
from thalweg.server.errors import ApiError

MOST_BATCHES = 1000
"""Batches of one owner. When there are more, the oldest that has ended is forgotten."""


class BatchRegistry:
    def __init__(self, files: FileStore, lines: LineRunner, together: int) -> None:
        self.files, self.runner = files, BatchRunner(files, lines, together)
        self.endpoints = lines.endpoints
        self._batches: dict[str, dict[str, Batch]] = {}

    def add(self, batch: Batch) -> None:
        """ApiError 429 if too many are under way."""
        own = self._batches.setdefault(batch.owner, {})
        if len(own) >= MOST_BATCHES:
            oldest = next((b.id for b in own.values() if b.status in ENDED), None)
            if oldest is None:
                raise ApiError(f"{MOST_BATCHES} batches are under way; try again later", status=429, retry_after=60)
            del own[oldest]
        own[batch.id] = batch

    def batch(self, owner: str, id: str) -> Batch:
        """ApiError 404, for another owner's batch too."""
        found = self._batches.get(owner, {}).get(id)
        if found is None:
            raise ApiError(f"batch_id: there is no batch {id[:80]!r}", "batch_id", 404)
        return found

    def batches(self, owner: str) -> list[Batch]:
        """The oldest first."""
        return list(self._batches.get(owner, {}).values())


def kept_by(serving: ServerContext) -> BatchRegistry:
    """Those of a server. Its batches take half of the engine's sequences at most."""
    return serving.share(_build)


def _build(serving: ServerContext) -> BatchRegistry:
    files = FileStore(serving.settings.files_store_bytes, serving.settings.files_directory or "")
    return BatchRegistry(files, serving.lines, max(1, serving.max_running // 2))


class Listable(Protocol):
    """An item of a list."""

    id: str

    def describe(self) -> dict[str, Any]:
        """As clients see it."""


def page(http: Request, items: Sequence[Listable], most: int, default: int, order: str = "desc") -> dict[str, Any]:
    """The part of a list that was asked for. items: the oldest first. ApiError for a wrong limit, order or after."""
    query = http.query_params
    limit = whole(http, "limit", default, 1, most)
    order, after = query.get("order", order), query.get("after")
    if order not in ("asc", "desc"):
        raise ApiError("order: must be asc or desc", "order")
    if order == "desc":
        items = items[::-1]
    if after:
        at = next((i for i, item in enumerate(items) if item.id == after), None)
        if at is None:
            raise ApiError(f"after: there is no {after[:80]!r}", "after")
        items = items[at + 1 :]
    shown = [item.describe() for item in items[:limit]]
    ends = {"first_id": shown[0]["id"] if shown else None, "last_id": shown[-1]["id"] if shown else None}
    return {"object": "list", "data": shown, "has_more": len(shown) < len(items), **ends}
