"""From a checked request to SamplingParams: request value, then the model's generation config, then the built-in default."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from thalweg.errors import RequestError
from thalweg.params import OF_MODEL, RequestOutputKind, SamplingParams
from thalweg.server.core.request import ChatRequest, GenerationRequest
from thalweg.server.core.schema import WireModel
from thalweg.server.core.structured import read_structured_outputs

MOST_NAMED = 10
"""Wrong keys that a refusal names."""
TRANSLATED = frozenset({"max_tokens", "logprobs", "logit_bias", "structured_outputs"})
"""Fields of requests that do not become parameters as they are."""


@cache
def shared_fields(kind: type[WireModel]) -> tuple[str, ...]:
    """Fields that have one name and one meaning in requests of `kind` and in SamplingParams."""
    return tuple(n for n in SamplingParams.__struct_fields__ if n in kind.model_fields and n not in TRANSLATED)


def chat_params(request: ChatRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    limit = request.max_completion_tokens or request.max_tokens or defaults.get("max_tokens")
    fields: dict[str, Any] = {"max_tokens": limit}
    if request.logprobs:
        fields["logprobs"] = request.top_logprobs or 0
    try:
        return build_params(request, defaults, fields, True)
    except RequestError as e:
        raise RequestError(str(e), chat_name(e.param, request)) from None


def chat_name(param: str | None, request: ChatRequest) -> str | None:
    """A field of SamplingParams as the client of chat completions wrote it."""
    if param == "logprobs":
        return "top_logprobs"
    if param == "max_tokens" and request.max_completion_tokens is not None:
        return "max_completion_tokens"
    return param


def build_params(
    request: GenerationRequest, defaults: Mapping[str, Any], fields: dict[str, Any], detokenize: bool
) -> SamplingParams:
    """fields: parameters that the dialect has resolved. RequestError names the field."""
    for name in shared_fields(GenerationRequest):
        value = getattr(request, name)
        if value is None and name in OF_MODEL:
            value = defaults.get(name)
        if value is not None:
            fields[name] = value
    if request.logit_bias:
        fields["logit_bias"] = _bias(request.logit_bias)
    fields["structured_outputs"] = read_structured_outputs(request)
    fields["output_kind"] = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    fields["detokenize"] = detokenize
    return SamplingParams(**fields)


def _bias(bias: Mapping[str, float]) -> dict[int, float]:
    wrong = [key for key in bias if not (key.isascii() and key.isdecimal())]
    if wrong:
        shown = ", ".join(map(repr, wrong[:MOST_NAMED])) + (" ..." if len(wrong) > MOST_NAMED else "")
        raise RequestError(f"logit_bias: not token ids: {shown}", "logit_bias")
    out: dict[int, float] = {}
    for key, value in bias.items():
        if int(key) in out:
            raise RequestError(f"logit_bias: token {int(key)} is given twice, once as {key!r}", "logit_bias")
        out[int(key)] = value
    return out
