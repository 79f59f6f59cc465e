"""Checked requests, as the client keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from thalweg.engine.client.pool_shape import PoolShape
from thalweg.engine.messages import EngineRequest
from thalweg.lora import LoRARequest
from thalweg.params import PoolingParams, SamplingParams

_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked request: the caller's view, and one EngineRequest per choice, in order of index."""

    request_id: str
    prompt: str | None
    prompt_ids: list[int]
    params: SamplingParams
    requests: list[EngineRequest] = field(repr=False)
    lora_request: LoRARequest | None = None
    """The adapter it is served with. Its digest is in `requests`."""
    handover: dict[str, Any] | None = None
    """kv_transfer_params with which another engine continues it. None: no engine does."""
    answer_ids: list[int] | None = None
    """The decoder's first tokens, where an encoder reads the prompt. None: the decoder reads it."""

    @property
    def context_ids(self) -> list[int]:
        """The tokens that the answer continues."""
        return self.prompt_ids if self.answer_ids is None else self.answer_ids


@dataclass(frozen=True, slots=True)
class PoolingSubmission:
    """A checked request to a pooling model."""

    request_id: str
    prompt: str | None
    prompt_ids: list[int]
    params: PoolingParams
    shape: PoolShape
    """The shape of the result."""
    request: EngineRequest = field(repr=False)


AnySubmission = TypeVar("AnySubmission", bound=Submission | PoolingSubmission)


def with_adapter(submission: AnySubmission, request: LoRARequest, digest: bytes) -> AnySubmission:
    """The same request, served with this adapter."""
    if isinstance(submission, PoolingSubmission):
        return replace(submission, request=msgspec.structs.replace(submission.request, adapter=digest))
    adapted = [msgspec.structs.replace(r, adapter=digest) for r in submission.requests]
    return replace(submission, requests=adapted, lora_request=request)


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index`: the request's seed for 0, else its SplitMix64 (Steele, Lea and Flood, 2014).

    A signed 64-bit number, like SamplingParams.seed."""
    if index == 0:
        return seed
    z = (seed + index * 0x9E3779B97F4A7C15) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    z ^= z >> 31
    return z - (1 << 64) if z >> 63 else z
