"""Shared parts of completions' and chat's answers, and a turn as messages and deltas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thalweg.outputs import CompletionOutput, RequestMetrics, RequestOutput
from thalweg.server.core.acceptance import summarise_rounds
from thalweg.server.core.job import GenerationJob
from thalweg.server.core.request import GenerationRequest
from thalweg.server.core.serving import Serving
from thalweg.server.core.turn import TurnReply
from thalweg.turns.events import CallArguments, CallStart, Content, Event, Message, Thought


def as_ids(serving: Serving, request: GenerationRequest) -> bool:
    """Are tokens named `token_id:N` in log-probabilities?"""
    requested = request.return_tokens_as_token_ids
    return serving.settings.return_tokens_as_token_ids if requested is None else requested


def usage_of(serving: Serving, request: GenerationRequest) -> tuple[bool, bool]:
    """Does a stream end with its usage, and does every chunk have it? --enable-force-include-usage asks for both."""
    if serving.settings.enable_force_include_usage:
        return True, True
    options = request.stream_options
    last = bool(options and options.include_usage)
    return last, bool(last and options and options.continuous_usage_stats)


def timing(serving: Serving, job: GenerationJob, metrics: RequestMetrics | None) -> dict[str, Any]:
    """{"metrics": times and drafts of the request} for its answer, with --enable-per-request-metrics and
    --per-request-spec-decode-metrics. The value is None where several choices or prompts share them, or there are none."""
    timed, level = serving.settings.enable_per_request_metrics, serving.settings.per_request_spec_decode_metrics
    if not timed and level == "none":
        return {}
    if metrics is None or len(job.prompts) > 1 or job.params.n > 1 or not metrics.first_token_ts:
        return {"metrics": None}
    found = _times(metrics) if timed else {}
    if level != "none":
        drafts = serving.engine.config.scheduler.speculation
        found["speculative_decoding"] = (
            None if drafts is None else summarise_rounds(metrics.draft_rounds, drafts.tokens, level == "detailed")
        )
    return {"metrics": found}


def _times(metrics: RequestMetrics) -> dict[str, Any]:
    m, result = metrics, metrics.num_generation_tokens
    decoding, running = m.last_token_ts - m.first_token_ts, m.last_token_ts - m.scheduled_ts
    return {
        "time_to_first_token_ms": (m.first_token_ts - m.scheduled_ts) * 1e3,
        "generation_time_ms": decoding * 1e3,
        "queue_time_ms": max(0.0, m.scheduled_ts - m.queued_ts) * 1e3,
        "mean_itl_ms": decoding / (result - 1) * 1e3 if result > 1 else None,
        "tokens_per_second": result / running if running > 0 else None,
    }


def handover(output: RequestOutput) -> dict[str, Any]:
    """{"kv_transfer_params": ...} of a request that another server continues."""
    return {} if output.kv_transfer_params is None else {"kv_transfer_params": output.kv_transfer_params}


def finish(choice: CompletionOutput) -> dict[str, Any]:
    return {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}


def head_of(reply: TurnReply, kind: str) -> dict[str, Any]:
    """The first fields of a whole answer. kind: its `object`."""
    return {"id": reply.job.id, "object": kind, "created": reply.job.created, "model": reply.job.model}


def message_of(events: Iterable[Event], echo: str) -> dict[str, Any]:
    """Fields of a whole choice's message, without its role. echo: text before the content."""
    message = Message()
    message.add(events)
    out: dict[str, Any] = {"content": (echo + message.content) or (None if message.calls else ""), "refusal": None}
    if message.reasoning:
        out |= _reasoning(message.reasoning)
    if message.calls:
        out["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in message.calls
        ]
    return out


def delta_of(event: Event) -> dict[str, Any]:
    """The delta of a chunk."""
    match event:
        case Content(text):
            return {"content": text}
        case Thought(text):
            return _reasoning(text)
        case CallStart(index, id, name):
            call = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
            return {"tool_calls": [call]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _reasoning(text: str) -> dict[str, str]:
    """Under both names that clients read."""
    return {"reasoning": text, "reasoning_content": text}
