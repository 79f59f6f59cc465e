"""The part of a server that belongs to no model: settings, bounds of bodies, and stores between requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from thalweg.server.core.fields import RequestParser
from thalweg.server.core.lifecycle import Lifecycle
from thalweg.server.core.lines import LineRunner
from thalweg.server.http.bodies import MAX_VALUES, Bodies
from thalweg.server.settings import ServerSettings

if TYPE_CHECKING:
    from thalweg.server.observe.metrics import HttpMetrics

R = TypeVar("R")
Stores = dict[Callable[[Any], Any], Any]
MIN_BODY, MAX_BODY, BYTES_PER_TOKEN = 8 * 2**20, 64 * 2**20, 64
"""Bytes of a request body without --max-body: enough for a prompt that fills the context, within these bounds."""


class ServerContext:
    """Shared by the endpoints of a server, whichever model they ask."""

    lines: LineRunner
    """Set once, when the routes are known."""

    def __init__(
        self, settings: ServerSettings, lifecycle: Lifecycle, traffic: HttpMetrics, context: int, max_running: int,
        stores: Stores | None = None,
    ) -> None:  # fmt: skip
        """context: tokens of the longest prompt. max_running: sequences that run at once. stores: shared with other parts of
        the same server."""
        self.settings, self.lifecycle, self.traffic, self.max_running = settings, lifecycle, traffic, max_running
        limit = settings.max_body or min(MAX_BODY, max(MIN_BODY, BYTES_PER_TOKEN * context))
        self.bodies = Bodies(limit, max(MAX_VALUES, 4 * context))
        self.fields = RequestParser(settings.strict_requests, traffic.unknown_field)
        self.created = int(time.time())
        self.stores: Stores = {} if stores is None else stores

    def share(self, make: Callable[[Any], R]) -> R:
        """State of a dialect between requests, the same for every model of the server. Made by `make` on first use."""
        if make not in self.stores:
            self.stores[make] = make(self)
        found: R = self.stores[make]
        return found
