"""From the engine's vectors and class numbers to what callers read. Owns the truth of every open request for one. Knows no
transport, no scheduling, no device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from thalweg.engine.client.inputs import PoolingSubmission
from thalweg.engine.client.outputs import OutputProcessor
from thalweg.engine.messages import EngineRequest, Outputs
from thalweg.outputs import ABORTED, PoolingOutput, PoolingRequestOutput, RequestMetrics, ScoringOutput, ScoringRequestOutput

SMALLEST = 1e-12
"""Lengths below this count as this, as in the published implementations: a vector of zeros stays one."""
Output = PoolingRequestOutput[PoolingOutput]


class _Open:
    __slots__ = ("cached", "metrics", "submission")

    def __init__(self, submission: PoolingSubmission, now: float) -> None:
        self.submission, self.metrics, self.cached = submission, RequestMetrics(arrival_time=now), 0


class PoolingOutputs:
    """All open requests of one engine to a pooling model. Not thread-safe: whoever reads frames drives it."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._handles: dict[str, int] = {}
        """By request id."""

    def open_ids(self) -> list[str]:
        """Oldest first."""
        return list(self._handles)

    def add(self, submission: PoolingSubmission, now: float) -> None:
        """Before its request reaches the engine. now: monotonic seconds."""
        self._open[submission.request.handle] = _Open(submission, now)
        self._handles[submission.request_id] = submission.request.handle

    def process(self, frame: Outputs) -> list[Output]:
        """What ended with this frame. News of handles that are closed here are dropped."""
        for started in frame.started:
            if (request := self._open.get(started.handle)) is not None:
                request.cached = started.cached_tokens
                request.metrics.queued_ts, request.metrics.scheduled_ts = started.queued_ts, started.scheduled_ts
                request.metrics.held = started.held
        for handle in frame.preempted:
            if handle in self._open:
                self._open[handle].metrics.num_preemptions += 1
        results: dict[int, np.ndarray] = {}
        if frame.pooled is not None:
            results = dict(zip(frame.pooled.handles.tolist(), frame.pooled.vectors, strict=True))
        out = []
        for end in frame.finished:
            request = self._close(end.handle)
            if request is not None:
                request.metrics.first_token_ts = request.metrics.last_token_ts = frame.time
                request.metrics.num_prefill_chunks = end.chunks
                out.append(_output(request, results.get(end.handle), end.error or end.reason))
        return out

    def abort(self, request_ids: Iterable[str]) -> dict[int, Output]:
        """Close those of these that are open: by handle, which the engine must stop, what their callers get."""
        handles = [h for i in request_ids if (h := self._handles.get(i)) is not None]
        return {h: _output(r, None, ABORTED) for h in handles if (r := self._close(h)) is not None}

    def fail(self, handle: int) -> str | None:
        """Close one: its request's id, None if it is not open."""
        request = self._close(handle)
        return None if request is None else request.submission.request_id

    def fail_all(self) -> None:
        self._open.clear()
        self._handles.clear()

    def _close(self, handle: int) -> _Open | None:
        request = self._open.pop(handle, None)
        if request is not None:
            del self._handles[request.submission.request_id]
        return request

    def open_handles(self) -> list[int]:
        """Oldest first."""
        return list(self._open)

    def resubmit(self, handles: Sequence[int]) -> list[EngineRequest]:
        """What a fresh engine needs to answer these. Handles that are closed are left out."""
        return [self._open[h].submission.request for h in handles if h in self._open]


class AllOpen:
    """Every open request of an engine, whichever kind of answer it waits for: what a new engine is given."""

    def __init__(self, tokens: OutputProcessor, vectors: PoolingOutputs) -> None:
        self._tokens, self._vectors = tokens, vectors

    def open_handles(self) -> list[int]:
        return [*self._tokens.open_handles(), *self._vectors.open_handles()]  # of one engine only one has any

    def resubmit(self, handles: Sequence[int]) -> list[EngineRequest]:
        return [*self._tokens.resubmit(handles), *self._vectors.resubmit(handles)]


def _output(request: _Open, result: np.ndarray | None, why: str) -> Output:
    """why: how it ended, for a request without a result."""
    s = request.submission
    data = np.empty(0, np.float32) if result is None else activated(result[: s.size], s.activation)
    error = why if result is None else None
    return Output(s.request_id, PoolingOutput(data), s.prompt_ids, request.cached, metrics=request.metrics, error=error)


def activated(x: np.ndarray, activation: str) -> np.ndarray:
    """x f32[N] -> f32[N]. activation: as `PoolingConfig` has it."""
    if activation == "none":
        return np.ascontiguousarray(x, np.float32)
    wide = x.astype(np.float64)
    if activation == "normalise":
        wide = wide / max(float(np.linalg.norm(wide)), SMALLEST)
    elif activation == "sigmoid":
        small = np.exp(-np.abs(wide))
        wide = np.where(wide >= 0, 1, small) / (1 + small)
    else:
        wide = np.exp(wide - wide.max())
        wide = wide / wide.sum()
    return wide.astype(np.float32)


def compared(a: Output, b: Output) -> ScoringRequestOutput:
    """The score of two texts by their vectors."""
    error = a.error or b.error
    score = math.nan if error else cosine(a.outputs.data, b.outputs.data)
    both = [*a.prompt_token_ids, *b.prompt_token_ids]
    cached = a.num_cached_tokens + b.num_cached_tokens
    return ScoringRequestOutput(a.request_id, ScoringOutput(score), both, cached, error=error)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Of the angle between two vectors; 0 where one is zero."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    return max(-1.0, min(1.0, float(x @ y / max(float(np.linalg.norm(x) * np.linalg.norm(y)), SMALLEST))))
