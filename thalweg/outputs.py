"""Outputs for the caller: RequestOutput with one CompletionOutput per choice, or PoolingRequestOutput and its kinds. Names
follow vLLM's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np

from thalweg.lora import LoRARequest

FINISH_REASONS = ("stop", "length", "abort", "error")
ABORTED = "the request was aborted"
"""`PoolingRequestOutput.error` of an aborted request."""


@dataclass(slots=True)
class Logprob:
    """Log-probability of one candidate token. rank 1: the argmax."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PositionLogprobs = Mapping[int, Logprob]
"""Token id -> Logprob. The sampled token is always included, and first."""


class FlatLogprobs(Sequence[PositionLogprobs]):
    """Log-probabilities of many positions in a few lists. As a sequence, it gives each position as a mapping."""

    def __init__(self, positions: Iterable[PositionLogprobs] = ()) -> None:
        self.start_indices: list[int] = []
        self.end_indices: list[int] = []
        """Position i is [start_indices[i], end_indices[i]) of the lists below."""
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.ranks: list[int | None] = []
        self.decoded_tokens: list[str | None] = []
        self.extend(positions)

    def append(self, position: PositionLogprobs) -> None:
        self.start_indices.append(len(self.token_ids))
        for token, entry in position.items():
            self.token_ids.append(token)
            self.logprobs.append(entry.logprob)
            self.ranks.append(entry.rank)
            self.decoded_tokens.append(entry.decoded_token)
        self.end_indices.append(len(self.token_ids))

    def extend(self, positions: Iterable[PositionLogprobs]) -> None:
        for position in positions:
            self.append(position)

    def __len__(self) -> int:
        return len(self.start_indices)

    @overload
    def __getitem__(self, at: int) -> PositionLogprobs: ...
    @overload
    def __getitem__(self, at: slice) -> FlatLogprobs: ...
    def __getitem__(self, at: int | slice) -> PositionLogprobs | FlatLogprobs:
        if isinstance(at, slice):
            return FlatLogprobs(self[i] for i in range(*at.indices(len(self))))
        begin, end = self.start_indices[at], self.end_indices[at]
        entries = zip(
            self.token_ids[begin:end], self.logprobs[begin:end], self.ranks[begin:end], self.decoded_tokens[begin:end],
            strict=True,
        )  # fmt: skip
        return {token: Logprob(value, rank, text) for token, value, rank, text in entries}


@dataclass(slots=True)
class ToolCall:
    """One call of a function."""

    id: str
    name: str
    arguments: str
    """JSON text as the model wrote it. It may be incomplete if the turn was cut off."""


@dataclass(slots=True)
class CompletionOutput:
    """One choice. `text` and `token_ids` are cumulative or deltas, by SamplingParams.output_kind."""

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | FlatLogprobs | None = None
    finish_reason: str | None = None
    """None while running, then one of FINISH_REASONS, "repetition" (SamplingParams.repetition_detection), or "cache_threshold"
    (SamplingParams.cache_hit_threshold)."""
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it. None for the end-of-sequence token or any other reason."""
    content: str | None = None
    """Of `LLM.chat`: `text` without reasoning and tool calls. None elsewhere."""
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    """Of `LLM.chat` with tools. Empty: the model called none."""
    audio: SpeechOutput | None = None
    """Of `LLM.chat` with modalities of audio: the spoken answer. Without samples, if there is nothing to speak."""
    frames: list[np.ndarray] | None = None
    """i32[books - 1] of each token, of models whose tokens are frames: the codes after the first."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def lora_request(self) -> None:
        """Always None: see `RequestOutput.lora_request`."""

    @property
    def routed_experts(self) -> None:
        """Always None: the experts of tokens are not reported."""


@dataclass(slots=True)
class RequestMetrics:
    """Monotonic seconds of the engine's clock. 0 = not reached. Latencies are differences of these times."""

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
    num_prefill_chunks: int = 0
    """Chunks of its prompt's computation, for all choices, recomputation included. Set as choices end."""
    held: str = ""
    """The reason for waiting in the engine's queue (`SequenceStarted.held`)."""
    draft_rounds: bytes = b""
    """Two bytes for each step that verified drafts of its choices: how many, and how many were accepted. Set as choices end.
    Steps before a restart of the engine are missing."""

    @property
    def first_token_latency(self) -> float:
        """Seconds from arrival to the first token. 0 = not reached."""
        return max(0.0, self.first_token_ts - self.arrival_time) if self.first_token_ts else 0.0


@dataclass(slots=True)
class PromptStates:
    """Hidden states that a talker reads, those before one of the layers."""

    values: np.ndarray
    """f32[tokens, hidden], of the last tokens of the prompt."""
    inputs: Sequence[Any]
    """Each `engine.messages.Input` of the prompt, without its arrays."""


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
    """finish_reason "error": the reason, in a message for the client."""
    lora_request: LoRARequest | None = None
    """The adapter it was served with."""
    kv_transfer_params: dict[str, Any] | None = None
    """Of a finished request with do_remote_decode: the parameters with which another engine continues."""
    num_stored_tokens: int = 0
    """Of num_cached_tokens, those loaded from a KV store."""
    alignment: np.ndarray | None = None
    """f32[tokens, heads * frames]: weights with which prompt tokens attend to the audio, in the heads that align both. With
    "alignment" in extra_args, from the token it names. None elsewhere."""
    states: PromptStates | None = None
    """With "states" in extra_args, of prompt tokens from the one it names. None elsewhere."""

    @property
    def encoder_prompt(self) -> None:
        """No model here has an encoder before its decoder."""

    @property
    def encoder_prompt_token_ids(self) -> None:
        """As `encoder_prompt`."""


@dataclass(slots=True)
class BeamSearchSequence:
    """One beam: the prompt's tokens and those after them."""

    orig_prompt: Any
    tokens: list[int]
    logprobs: list[PositionLogprobs]
    """Of each token that was added, the candidates, most likely first."""
    lora_request: LoRARequest | None = None
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    """stop: the end token. length: max_tokens."""
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The best beams of a prompt, best first."""

    sequences: list[BeamSearchSequence]


@dataclass(slots=True, eq=False)
class PoolingOutput:
    """The result of a pooling model for one sequence, or for each of its tokens: a vector, or a number per class. Empty where
    the request failed."""

    data: np.ndarray
    """f32[values], or of each token f32[tokens, values]"""


@dataclass(slots=True)
class EmbeddingOutput:
    """One text's vector. Empty where the request failed."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)

    @staticmethod
    def from_base(pooled: PoolingOutput) -> EmbeddingOutput:
        return EmbeddingOutput(pooled.data.tolist())


@dataclass(slots=True)
class ClassificationOutput:
    """One text's classes: their probabilities, or their logits. Empty where the request failed."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)

    @staticmethod
    def from_base(pooled: PoolingOutput) -> ClassificationOutput:
        return ClassificationOutput(pooled.data.tolist())


@dataclass(slots=True)
class ScoringOutput:
    """The relevance of one text to another. NaN where the request failed."""

    score: float

    @staticmethod
    def from_base(pooled: PoolingOutput) -> ScoringOutput:
        return ScoringOutput(float(pooled.data[0]) if pooled.data.size else math.nan)


Result = TypeVar("Result")
"""The converted result: PoolingOutput, EmbeddingOutput, ClassificationOutput or ScoringOutput."""


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Result]):
    """Everything about one request to a pooling model."""

    request_id: str
    outputs: Result
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
    metrics: RequestMetrics | None = None
    error: str | None = None
    """The reason of a failure, in a message for the client. None: the result is there."""

    @classmethod
    def from_request_output(cls, of: PoolingRequestOutput[Any], outputs: Result) -> Self:
        """The same request with another kind of result."""
        return cls(of.request_id, outputs, of.prompt_token_ids, of.num_cached_tokens, of.finished, of.metrics, of.error)


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """Everything about one request for a vector."""


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """Everything about one request for classes."""


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """Everything about one request for a score. prompt_token_ids: of both texts."""


@dataclass(slots=True)
class SpeechOutput:
    """The speech of one text."""

    samples: np.ndarray
    """f32[n], one channel."""
    rate: int
    """Samples per second."""
