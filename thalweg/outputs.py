"""What a caller gets back: RequestOutput with one CompletionOutput per choice, or EmbeddingRequestOutput. Names follow
the field's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FINISH_REASONS = ("stop", "length", "abort", "error")


@dataclass(slots=True)
class Logprob:
    """Of one candidate token. rank 1 = most likely."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PositionLogprobs = Mapping[int, Logprob]
"""Token id -> Logprob. The chosen token is always among them, and first."""


@dataclass(slots=True)
class CompletionOutput:
    """One choice. `text` and `token_ids` are cumulative or deltas, by SamplingParams.output_kind."""

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    """None while running, then one of FINISH_REASONS."""
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it. None for the end-of-sequence token or any other reason."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Monotonic seconds of the engine's clock. 0 = not reached. Latencies are differences of these."""

    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    num_generation_tokens: int = 0
    max_num_generation_tokens: int = 0
    """Tokens of the longest choice. Set when the request has finished."""
    num_preemptions: int = 0
    """Preemptions of its choices, together."""


@dataclass(slots=True)
class RequestOutput:
    """Everything about one request so far."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: list[PositionLogprobs | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    num_cached_tokens: int | None = None
    error: str | None = field(default=None)
    """finish_reason "error": what happened, in words a client may see."""


@dataclass(slots=True)
class EmbeddingOutput:
    """One text's vector. Empty where the request failed."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class EmbeddingRequestOutput:
    """Everything about one request for a vector."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
    error: str | None = None
    """What happened, in words a client may see. None: the vector is there."""
