"""From the engine's vectors and class numbers to outputs of callers. Keeps the state of every open pooling request. Knows no
transport, no scheduling, no device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from thalweg.engine.client.pool_shape import SMALLEST, apply_pool_shape
from thalweg.engine.client.submission import PoolingSubmission
from thalweg.engine.messages import EngineRequest, Outputs, TokenVectors
from thalweg.outputs import ABORTED, PoolingOutput, PoolingRequestOutput, RequestMetrics, ScoringOutput, ScoringRequestOutput

Output = PoolingRequestOutput[PoolingOutput]
QUERIES = 256 << 20
"""Bytes of query vectors kept for documents."""
NOT_KEPT = "no query is kept by it: none was asked for, it has been used as often as query_uses said, or others took its place"


class _OpenRequest:
    __slots__ = ("cached", "each", "metrics", "submission")

    def __init__(self, submission: PoolingSubmission, now: float) -> None:
        self.submission, self.metrics, self.cached = submission, RequestMetrics(arrival_time=now), 0
        self.each: np.ndarray | None = None
        """f32[tokens, N]: results of the tokens received so far. None: no token yet."""

    def add(self, part: TokenVectors) -> None:
        """Stored by position, so results received twice (after a preemption) do no harm."""
        if self.submission.request.encode_only:
            self.each = part.values
            return
        if self.each is None:
            self.each = np.zeros((len(self.submission.prompt_ids), part.values.shape[1]), np.float32)
        self.each[part.start : part.start + len(part.values)] = part.values


class QueryVectors:
    """Vectors of queries, against which other requests are scored (`LateInteractionParams`)."""

    def __init__(self, budget: int = QUERIES) -> None:
        """budget: bytes of kept vectors. The oldest are forgotten first."""
        self._budget = budget
        self._kept: dict[str, tuple[np.ndarray, int]] = {}

    def settle(self, submission: PoolingSubmission, output: Output) -> Output:
        """The caller's output for a request that has ended with this result."""
        late = submission.params.late_interaction_params
        if late is None or output.error is not None:
            return output
        if late.mode == "cache_query":
            self._kept.pop(late.query_key, None)
            self._kept[late.query_key] = output.outputs.data, late.query_uses or 1
            while len(self._kept) > 1 and sum(v.nbytes for v, _ in self._kept.values()) > self._budget:
                del self._kept[next(iter(self._kept))]
            output.outputs = PoolingOutput(np.zeros(1, np.float32))
            return output
        found = self._kept.get(late.query_key)
        if found is None:
            output.outputs, output.error = PoolingOutput(np.empty(0, np.float32)), f"query_key: {NOT_KEPT}"
            return output
        query, uses = found
        self._kept[late.query_key] = query, uses - 1
        if uses == 1:
            del self._kept[late.query_key]
        output.outputs = PoolingOutput(np.array([maxsim(query, output.outputs.data)], np.float32))
        return output


class PoolingOutputs:
    """All open requests of one engine to a pooling model. Not thread-safe: the reader of frames drives it."""

    def __init__(self) -> None:
        self._open: dict[int, _OpenRequest] = {}
        self._handles: dict[str, int] = {}
        """By request id."""
        self._late = QueryVectors()

    def open_ids(self) -> list[str]:
        """Oldest first."""
        return list(self._handles)

    def add(self, submission: PoolingSubmission, now: float) -> None:
        """Before its request reaches the engine. now: monotonic seconds."""
        self._open[submission.request.handle] = _OpenRequest(submission, now)
        self._handles[submission.request_id] = submission.request.handle

    def process(self, frame: Outputs) -> list[Output]:
        """Outputs of requests that ended with this frame. Events of closed handles are dropped."""
        for started in frame.started:
            if (request := self._open.get(started.handle)) is not None:
                request.cached = started.cached_tokens
                request.metrics.queued_ts, request.metrics.scheduled_ts = started.queued_ts, started.scheduled_ts
                request.metrics.held = started.held
        for handle in frame.preempted:
            if handle in self._open:
                self._open[handle].metrics.num_preemptions += 1
        for part in frame.each:
            if part.handle in self._open:
                self._open[part.handle].add(part)
        results: dict[int, np.ndarray] = {}
        if frame.pooled is not None:
            results = dict(zip(frame.pooled.handles.tolist(), frame.pooled.vectors, strict=True))
        out = []
        for end in frame.finished:
            request = self._close(end.handle)
            if request is not None:
                request.metrics.first_token_ts = request.metrics.last_token_ts = frame.time
                request.metrics.num_prefill_chunks = end.chunks
                out.append(
                    self._late.settle(request.submission, _output(request, results.get(end.handle), end.error or end.reason))
                )
        return out

    def abort(self, request_ids: Iterable[str]) -> dict[int, Output]:
        """Close the open ones of these requests: handles for the engine to stop -> outputs for their callers."""
        handles = [h for i in request_ids if (h := self._handles.get(i)) is not None]
        return {h: _output(r, None, ABORTED) for h in handles if (r := self._close(h)) is not None}

    def fail(self, handle: int) -> str | None:
        """Close one: its request's id, None if it is not open."""
        request = self._close(handle)
        return None if request is None else request.submission.request_id

    def fail_all(self) -> None:
        self._open.clear()
        self._handles.clear()

    def _close(self, handle: int) -> _OpenRequest | None:
        request = self._open.pop(handle, None)
        if request is not None:
            del self._handles[request.submission.request_id]
        return request

    def open_handles(self) -> list[int]:
        """Oldest first."""
        return list(self._open)

    def resubmit(self, handles: Sequence[int]) -> list[EngineRequest]:
        """Requests with which a fresh engine answers these. Closed handles are skipped."""
        return [self._open[h].submission.request for h in handles if h in self._open]


def _output(request: _OpenRequest, result: np.ndarray | None, why: str) -> Output:
    """why: the reason of its end, for a request without a result."""
    s = request.submission
    if s.request.encode_only:
        error = why if request.each is None else None
        data = np.empty((0, 0), np.float32) if request.each is None else request.each
        return Output(s.request_id, PoolingOutput(data), s.prompt_ids, request.cached, metrics=request.metrics, error=error)
    if result is not None and s.shape.each:
        result = request.each
    data = np.empty(0, np.float32) if result is None else apply_pool_shape(result, s.shape, s.prompt_ids)
    error = why if result is None else None
    return Output(s.request_id, PoolingOutput(data), s.prompt_ids, request.cached, metrics=request.metrics, error=error)


def compare_vectors(a: Output, b: Output) -> ScoringRequestOutput:
    """The score of two texts by their vectors."""
    error = a.error or b.error
    score = math.nan if error else likeness(a.outputs.data, b.outputs.data)
    both = [*a.prompt_token_ids, *b.prompt_token_ids]
    cached = a.num_cached_tokens + b.num_cached_tokens
    return ScoringRequestOutput(a.request_id, ScoringOutput(score), both, cached, error=error)


ROWS = 256
"""Tokens of a query compared with a document's at once."""


def likeness(a: np.ndarray, b: np.ndarray) -> float:
    """The score of two texts: the cosine of their vectors' angle, or MaxSim where each token has a vector."""
    return cosine(a, b) if a.ndim == 1 else maxsim(a, b)


def maxsim(query: np.ndarray, document: np.ndarray) -> float:
    """Late interaction, f32[N, H] with f32[M, H]: the sum, over a query's tokens, of the largest product with one of the
    document's. 0 without tokens."""
    if not len(query) or not len(document):
        return 0.0
    other = document.astype(np.float64).T
    parts = (query[at : at + ROWS].astype(np.float64) @ other for at in range(0, len(query), ROWS))
    return math.fsum(float(best) for part in parts for best in part.max(1))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Of the angle between two vectors; 0 where one is zero."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    return max(-1.0, min(1.0, float(x @ y / max(float(np.linalg.norm(x) * np.linalg.norm(y)), SMALLEST))))
