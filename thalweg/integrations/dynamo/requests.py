"""Requests and chunks of Dynamo's token pipeline. Knows their format only, so it needs no Dynamo.

The format is that of `dynamo.common.backend.engine.GenerateRequest` and `GenerateChunk` of Dynamo 1.6. The frontend renders
chats, tokenizes, and detokenizes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from thalweg import CompletionOutput, RequestOutput, RequestOutputKind, SamplingParams, StructuredOutputsParams
from thalweg.errors import RequestError
from thalweg.params import NUMBERS

SAMPLING = frozenset(name for name, field in NUMBERS.items() if field.range.sampler) | {
    "n", "seed", "logit_bias", "allowed_token_ids", "bad_words", "include_stop_str_in_output",
}  # fmt: skip
INERT = {"best_of": 1, "length_penalty": 1.0, "use_beam_search": False}
"""Options without support, by the value that asks for nothing."""
STOPPING = {
    "max_tokens": "max_tokens", "min_tokens": "min_tokens", "ignore_eos": "ignore_eos",
    "max_thinking_tokens": "thinking_token_budget",
}  # fmt: skip
HEALTH_CHECK = "_HEALTH_CHECK"
"""The field of Dynamo's own probes."""
GUIDED = ("json", "regex", "choice", "grammar", "structural_tag", "whitespace_pattern")
UNSUPPORTED = ("multi_modal_data", "encoder_result", "bootstrap_info")
AGGREGATED, PREFILL, DECODE = "agg", "prefill", "decode"
"""Roles of a worker. A prefill worker computes prompts and saves their blocks in a store, from which a decode worker loads
them."""
PAUSE_SECONDS = 300.0
"""The KV blocks of an agent's session are kept for this time after each request."""
REASONS = {"stop": "stop", "length": "length", "abort": "cancelled", "error": "error"}


def read_params(request: Mapping[str, Any], defaults: Mapping[str, Any], mode: str = AGGREGATED) -> SamplingParams:
    """The parameters of a request. defaults: those of the model, for fields that the request lacks. mode: the worker's role.
    RequestError names an option that cannot be honoured."""
    for name in UNSUPPORTED:
        if request.get(name):
            raise RequestError(f"{name}: this worker serves text; remove it from the request", name)
    fields: dict[str, Any] = {**defaults, "max_tokens": None}
    for name, value in (request.get("sampling_options") or {}).items():
        if value is None or (name in INERT and value == INERT[name]):
            continue
        if name == "guided_decoding":
            guide = {k: value[k] for k in GUIDED if value.get(k) is not None}
            fields["structured_outputs"] = StructuredOutputsParams(**guide) if guide else None
        elif name in SAMPLING:
            fields[name] = {int(k): v for k, v in value.items()} if name == "logit_bias" else value
        else:
            raise RequestError(f"sampling_options.{name}: it is not supported; omit it", name)
    fields |= _read_stopping(request.get("stop_conditions") or {})
    shown = request.get("output_options") or {}
    fields |= {name: int(shown[name]) for name in ("logprobs", "prompt_logprobs") if shown.get(name) is not None}
    if (request.get("agent_context") or {}).get("session_id"):
        fields["cache_retention"] = PAUSE_SECONDS
    fields |= _read_handover(request, mode)
    # Dynamo reads disaggregated_params in the first chunk of a prefill, so there is one.
    kind = RequestOutputKind.FINAL_ONLY if mode == PREFILL else RequestOutputKind.DELTA
    return SamplingParams(**fields, detokenize=bool(fields.get("bad_words")), output_kind=kind)


def _read_handover(request: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """A prefill worker computes one token, which Dynamo drops. A decode worker continues what prefill_result names."""
    begun = request.get("prefill_result")
    if mode == PREFILL:
        return {"n": 1, "max_tokens": 1, "min_tokens": 0, "kv_transfer_params": {"do_remote_decode": True}}
    if mode == DECODE and begun:
        return {"kv_transfer_params": begun["disaggregated_params"]}
    if mode == DECODE and not request.get(HEALTH_CHECK):
        raise RequestError("prefill_result: a decode worker continues the prompt of a prefill worker; add it", "prefill_result")
    if begun:
        raise RequestError(
            "prefill_result: this worker has no prefill peer; use --disaggregation-mode decode", "prefill_result"
        )
    return {}


def read_tokens(request: Mapping[str, Any]) -> list[int]:
    """The prompt: a sequence of ids, or with DYN_TOKEN_IDS_AS_BYTES their 32-bit integers, little-endian. RequestError."""
    given = request.get("token_ids")
    if not isinstance(given, bytes | bytearray | memoryview):
        return [int(token) for token in given or ()]
    if len(given) % 4:
        raise RequestError(f"token_ids: {len(given)} packed bytes are no whole number of ids", "token_ids")
    return [token for (token,) in struct.iter_unpack("<i", given)]


def read_priority(request: Mapping[str, Any]) -> int:
    """Of `nvext.agent_hints`, as the engine orders requests: lower is sooner."""
    return -int((request.get("routing") or {}).get("priority") or 0)


def _read_stopping(given: Mapping[str, Any]) -> dict[str, Any]:
    """The frontend looks for stop strings itself, and cancels the request when it finds one."""
    fields = {ours: given[theirs] for theirs, ours in STOPPING.items() if given.get(theirs) is not None}
    ids = {*(given.get("stop_token_ids") or ()), *(given.get("stop_token_ids_hidden") or ())}
    return {**fields, "stop_token_ids": sorted(ids)} if ids else fields


class ChunkStream:
    """The chunks of one request, made of its outputs with `RequestOutputKind.DELTA`."""

    def __init__(self, candidates: int = 0) -> None:
        """candidates: the requested number of log-probabilities of each position, besides the sampled token's."""
        self._candidates = candidates
        self._counts: dict[int, int] = {}
        self._prompt_logprobs: list[Any] | None = None

    def add(self, output: RequestOutput) -> list[dict[str, Any]]:
        """The chunks of the next output. The last chunk of the request has the log-probabilities of the prompt."""
        self._prompt_logprobs = self._prompt_logprobs or output.prompt_logprobs
        chunks = [self._make(output, choice) for choice in output.outputs]
        if self._prompt_logprobs and output.finished and chunks:
            chunks[-1]["engine_data"] = {"prompt_logprobs": _make_prompt_logprobs(self._prompt_logprobs)}
        return chunks

    def _make(self, output: RequestOutput, choice: CompletionOutput) -> dict[str, Any]:
        result = self._counts[choice.index] = self._counts.get(choice.index, 0) + len(choice.token_ids)
        chunk: dict[str, Any] = {"token_ids": list(choice.token_ids), "index": choice.index}
        if choice.logprobs:
            chunk |= _make_logprobs(choice, self._candidates)
        if choice.finish_reason:
            prompt = len(output.prompt_token_ids or ())
            usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": result, "total_tokens": prompt + result}
            if output.num_cached_tokens is not None:
                usage["prompt_tokens_details"] = {"cached_tokens": output.num_cached_tokens}
            if output.kv_transfer_params is not None:
                chunk["disaggregated_params"] = output.kv_transfer_params
            chunk |= {"finish_reason": REASONS.get(choice.finish_reason, "stop"), "completion_usage": usage}
        return chunk


def _make_logprobs(choice: CompletionOutput, candidates: int) -> dict[str, Any]:
    """log_probs has the sampled token's of each position. top_logprobs has all that were requested, if any were."""
    rows = [dict(row) for row in choice.logprobs or ()]
    result: dict[str, Any] = {"log_probs": [row[token].logprob for row, token in zip(rows, choice.token_ids, strict=True)]}
    if candidates:
        result["top_logprobs"] = [
            [
                {"rank": one.rank, "token_id": token, "token": one.decoded_token, "logprob": one.logprob}
                for token, one in row.items()
            ]
            for row in rows
        ]
    return result


def _make_prompt_logprobs(rows: Any) -> list[dict[str, Any] | None]:
    return [
        None
        if row is None
        else {str(t): {"logprob": x.logprob, "rank": x.rank, "decoded_token": x.decoded_token} for t, x in row.items()}
        for row in rows
    ]
