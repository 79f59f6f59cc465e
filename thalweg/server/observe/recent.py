"""Records of recent requests: waits with their reasons, and the computation. Kept for a while, in bounds."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from thalweg.engine.messages import Outputs
from thalweg.outputs import PoolingRequestOutput, RequestMetrics, RequestOutput
from thalweg.params import PoolingParams, SamplingParams
from thalweg.server.http.middleware import current_scope, owner_of

MOST_REQUESTS = 1024
"""Of all keys. The key that has most loses its oldest first."""
MOST_PARTS = 32
"""Most recorded parts of one request. A part is admitted separately: a prompt, or some choices of one."""


@dataclass(slots=True)
class EngineRecord:
    """One request of the engine's. Times are monotonic seconds."""

    began: float
    """Time of admission."""
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ended: float = 0.0
    how: str = ""
    """A finish reason. "": it has not ended."""


@dataclass(slots=True)
class Record:
    """One request of a client's."""

    id: str
    tenant: str
    """The API key it came with, by number. "": there is at most one."""
    model: str
    expected: int
    """Parts it will have."""
    arrived: float
    running: int
    """Sequences at the engine when it came."""
    ahead: int
    """Prompts that waited for admission before it."""
    restarts: int
    """Of the engine, before it."""
    over: float = 0.0
    """Time when it was answered, or its client went away."""
    parts: OrderedDict[str, EngineRecord] = field(default_factory=OrderedDict)


class RecentRequests:
    """A StatLogger and a RequestObserver. Made before the engine, and passed to it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.progress: Callable[[str], RequestMetrics | None] = lambda request_id: None
        """The engine's metrics of an open request."""
        self._clock = clock
        self._records: dict[str, OrderedDict[str, Record]] = {}
        """By key, then by id. Clients choose ids, so two keys may choose the same."""
        self._count = 0
        self._names: dict[tuple[str, str], str] = {}
        """(key, the client's own name of a request): its id."""
        self._open: dict[str, EngineRecord] = {}
        """By the engine's id: parts that it has."""

    def add(self, record: Record) -> None:
        """A request was accepted. One of the same key that bears the same id is forgotten."""
        own = self._records.setdefault(record.tenant, OrderedDict())
        self._count += record.id not in own
        own.pop(record.id, None)
        own[record.id] = record
        self._names[record.tenant, record.id.partition("-")[2]] = record.id
        while self._count > MOST_REQUESTS:
            self._forget(max(self._records, key=lambda tenant: len(self._records[tenant])))

    def end(self, record: Record) -> None:
        record.over = self._clock()

    def _forget(self, tenant: str) -> None:
        """The key's oldest."""
        own = self._records[tenant]
        request_id, _ = own.popitem(last=False)
        self._count -= 1
        name = (tenant, request_id.partition("-")[2])
        if self._names.get(name) == request_id:
            del self._names[name]
        if not own:
            del self._records[tenant]

    def _get(self, tenant: str, id: str) -> Record | None:
        own = self._records.get(tenant)
        return None if own is None else own.get(id)

    def find(self, name: str, tenant: str) -> Record | None:
        """By the answer's id, or by the X-Request-Id it came with. None also where another key asked for it."""
        record = self._get(tenant, self._names.get((tenant, name), name))
        if record is None:
            return None
        for request_id, part in record.parts.items():
            if not part.how and (now := self.progress(request_id)) is not None:
                part.metrics = dataclasses.replace(now)
        return record

    @contextmanager
    def under_way(self, request_id: str) -> Iterator[None]:
        record = self._get(owner_of(current_scope.get()), request_id.rpartition("-")[0])
        if record is None or len(record.parts) >= MOST_PARTS:
            yield
            return
        part = record.parts[request_id] = self._open[request_id] = EngineRecord(self._clock())
        try:
            yield
        finally:
            del self._open[request_id]
            if not part.how:  # it ended without output: its reader disconnected, or it was refused
                part.how, part.ended = "abort", self._clock()

    def record(self, outputs: Outputs) -> None:
        """Steps are not kept."""

    def record_request(self, output: RequestOutput | PoolingRequestOutput[Any], params: SamplingParams | PoolingParams) -> None:
        part = self._open.get(output.request_id)
        if part is None:
            return
        if output.metrics is not None:
            part.metrics = dataclasses.replace(output.metrics)
        part.prompt_tokens, part.cached_tokens = len(output.prompt_token_ids or ()), output.num_cached_tokens or 0
        part.ended = self._clock()
        if isinstance(output, RequestOutput):
            part.how = next((c.finish_reason for c in output.outputs if c.finish_reason), "stop")
        else:
            part.how = "stop" if output.error is None else "error"
