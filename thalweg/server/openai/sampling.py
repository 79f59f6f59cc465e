"""From a checked request for a completion to SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.params import SamplingParams
from thalweg.server.core.sampling import build_params
from thalweg.server.openai.protocol import CompletionRequest


def completion_params(request: CompletionRequest, defaults: Mapping[str, Any], detokenize: bool) -> SamplingParams:
    limit = request.max_tokens
    if limit is None:
        limit = defaults.get("max_tokens")
    fields: dict[str, Any] = {"max_tokens": 1 if limit == 0 else limit, "logprobs": request.logprobs}
    if request.echo and request.logprobs is not None and request.prompt_logprobs is None:
        fields["prompt_logprobs"] = request.logprobs
    return build_params(request, defaults, fields, detokenize)
