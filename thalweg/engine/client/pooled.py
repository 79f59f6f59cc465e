"""From the engine's vectors to what callers read. Knows no transport, no scheduling, no device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thalweg.engine.client.inputs import PoolingSubmission
from thalweg.engine.messages import Outputs
from thalweg.outputs import EmbeddingOutput, EmbeddingRequestOutput

SMALLEST = 1e-12
"""Lengths below this count as this, as in the published implementations: a vector of zeros stays one."""


class PoolingOutputs:
    """All open requests for vectors of one engine. Not thread-safe: whoever reads frames drives it."""

    def __init__(self, normalise: bool) -> None:
        """normalise: what the model's files say, for requests that do not."""
        self._normalise = normalise
        self._open: dict[int, PoolingSubmission] = {}

    def add(self, submission: PoolingSubmission) -> None:
        """Before its request reaches the engine."""
        self._open[submission.request.handle] = submission

    def process(self, frame: Outputs) -> list[EmbeddingRequestOutput]:
        """What ended with this frame. News of handles that are closed here are dropped."""
        vectors: dict[int, np.ndarray] = {}
        if frame.pooled is not None:
            vectors = dict(zip(frame.pooled.handles.tolist(), frame.pooled.vectors, strict=True))
        out = []
        for end in frame.finished:
            submission = self._open.pop(end.handle, None)
            if submission is not None:
                out.append(self._output(submission, vectors.get(end.handle), end.error or end.reason))
        return out

    def _output(self, s: PoolingSubmission, vector: np.ndarray | None, why: str) -> EmbeddingRequestOutput:
        """why: how it ended, for a request without a vector."""
        if vector is None:
            return EmbeddingRequestOutput(s.request_id, EmbeddingOutput([]), s.prompt_ids, error=why)
        said = s.params.use_activation
        if self._normalise if said is None else said:
            vector = vector / max(float(np.linalg.norm(vector)), SMALLEST)
        return EmbeddingRequestOutput(s.request_id, EmbeddingOutput(vector.tolist()), s.prompt_ids)

    def abort(self, request_ids: Sequence[str]) -> list[int]:
        """Close those of these that are open: handles the engine must stop."""
        wanted = set(request_ids)
        stopped = [h for h, s in self._open.items() if s.request_id in wanted]
        for handle in stopped:
            del self._open[handle]
        return stopped
