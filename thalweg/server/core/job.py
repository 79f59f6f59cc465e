"""One checked request, ready to run."""

from __future__ import annotations

from typing import Any

import msgspec

from thalweg.lora import LoRARequest
from thalweg.params import PoolingParams, SamplingParams
from thalweg.server.core.adapters import ServedAdapter
from thalweg.server.core.admission import Ticket


class AcceptedJob(msgspec.Struct, frozen=True, kw_only=True):
    """Base of jobs. `prompts` for the engine, in order, each with its token ids."""

    id: str
    model: str
    created: int
    prompts: list[dict[str, Any]]
    params: SamplingParams | PoolingParams
    priority: int
    ticket: Ticket
    adapter: ServedAdapter | None = None
    """The adapter that `model` named when the request was accepted. None: `model` is the base model."""

    @property
    def lora_request(self) -> LoRARequest | None:
        return None if self.adapter is None else self.adapter.request

    @property
    def prompt_tokens(self) -> int:
        return sum(len(p["prompt_token_ids"]) for p in self.prompts)


class GenerationJob(AcceptedJob, frozen=True, kw_only=True):
    """Prompts to generate from."""

    params: SamplingParams
