"""/v1/requests/{id}/why: why a request waited, or took as long as it did."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.core.acceptance import count_by_position
from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import respond
from thalweg.server.observe.recent import MOST_PARTS, EngineRecord, Record

UNKNOWN = "request {!r} is not known: it is too old, came with another key, or never was"
SHOWN = 0.001
"""Seconds of waiting that need a reason."""
HELD = {
    "": "it waited for the step in progress, or for those before it in the queue",
    "slots": "as many sequences ran as may (--max-num-seqs)",
    "tokens": "the tokens of each step went to those before it (--max-num-batched-tokens)",
    "cache": "the KV cache had no room for its prompt next to running ones",
    "prefix": "another request was computing the same prefix, which it then found in the cache",
    "store": "a longer prefix of its prompt was on its way from the store (--kv-transfer-config)",
    "partial": "as many prompts were in progress as may (--max-num-partial-prefills, --max-long-partial-prefills)",
    "adapter": "every slot for adapters was in use by running requests with others (--max-loras)",
    "interval": "prompts start in some steps only, while sequences run (--prefill-schedule-interval)",
}
"""By the scheduler's last reason (`SequenceStarted.held`)."""


async def why(serving: Serving, http: Request) -> Response:
    name = http.path_params["id"]
    record = serving.recent.find(name, str(http.scope.get("thalweg.tenant", "")))
    if record is None:
        raise ApiError(UNKNOWN.format(name[:80]), "id", 404)
    return respond(describe(serving, record, time.monotonic()))


def describe(serving: Serving, record: Record, now: float) -> dict[str, Any]:
    parts = [_part(serving, record, p, now) for p in record.parts.values()]
    if not record.over and len(parts) < min(record.expected, MOST_PARTS):
        parts.append(_at_the_door(serving, record, now))
    replaced = serving.engine.restarts - record.restarts
    return {
        "id": record.id,
        "object": "request.why",
        "model": record.model,
        "engine": serving.engine.state,
        "engine_restarts": replaced,
        "state": "ended" if record.over else "open",
        "seconds": round((record.over or now) - record.arrived, 6),
        "parts": parts,
    }


def _at_the_door(serving: Serving, record: Record, now: float) -> dict[str, Any]:
    return {
        "state": "waiting at the door",
        "seconds": {"door": round(now - record.arrived, 6)},
        "reasons": [_reason("door", now - record.arrived, _door(serving, record))],
    }


def _part(serving: Serving, record: Record, part: EngineRecord, now: float) -> dict[str, Any]:
    m, end = part.metrics, part.ended or now
    phases = {"door": part.began - record.arrived}
    if m.scheduled_ts:
        phases["queue"] = m.scheduled_ts - part.began
        phases["prefill"] = (m.first_token_ts or end) - m.scheduled_ts
        if m.first_token_ts:
            phases["decode"] = end - m.first_token_ts
    else:
        phases["queue"] = end - part.began
    phases = {k: max(0.0, v) for k, v in phases.items()}
    drafted, accepted = count_by_position(m.draft_rounds)
    return {
        "state": _state(part),
        "finish_reason": part.how or None,
        "prompt_tokens": part.prompt_tokens,
        "cached_tokens": part.cached_tokens,
        "generated_tokens": m.num_generation_tokens,
        "chunks": m.num_prefill_chunks,
        "preemptions": m.num_preemptions,
        **({"drafts": drafted, "accepted_drafts": accepted} if drafted else {}),
        "seconds": {k: round(v, 6) for k, v in phases.items()},
        "reasons": _reasons(serving, record, part, phases),
    }


def _state(part: EngineRecord) -> str:
    if part.how:
        return "ended"
    if not part.metrics.scheduled_ts:
        return "waiting in the engine"
    return "answering" if part.metrics.first_token_ts else "computing the prompt"


def _reasons(serving: Serving, record: Record, part: EngineRecord, phases: dict[str, float]) -> list[dict[str, Any]]:
    m, found = part.metrics, []
    if phases["door"] > SHOWN:
        found.append(_reason("door", phases["door"], _door(serving, record)))
    if phases["queue"] > SHOWN:
        state = serving.engine.state
        stands = f"; the engine is {state}" if state != "ready" and not m.scheduled_ts else ""
        found.append(_reason("queue", phases["queue"], HELD.get(m.held, m.held) + stands))
    if "prefill" in phases and part.how:
        computed = part.prompt_tokens - part.cached_tokens
        words = f"{computed} of {part.prompt_tokens} prompt tokens were computed in {m.num_prefill_chunks} chunks"
        found.append(_reason("prefill", phases["prefill"], f"{words}; {part.cached_tokens} were cached"))
    if m.num_preemptions:
        words = f"{m.num_preemptions} times it gave up its cache to those before it, and was computed again"
        found.append(_reason("preemption", None, words))
    if replaced := serving.engine.restarts - record.restarts:
        found.append(_reason("restart", None, f"{replaced} times the engine was replaced since it came"))
    if "decode" in phases and m.num_generation_tokens > 1:
        gap = 1000 * phases["decode"] / (m.num_generation_tokens - 1)
        words = f"{m.num_generation_tokens} tokens, one every {gap:.3g} ms"
        if drafts := sum(m.draft_rounds[::2]):
            words += f"; {sum(m.draft_rounds[1::2])} of {drafts} drafts were right, in {len(m.draft_rounds) // 2} steps"
        found.append(_reason("decode", phases["decode"], words))
    return found


def _door(serving: Serving, record: Record) -> str:
    window = serving.admission.window
    return (
        f"{record.running} of {window} sequences were at the engine when it came, and {record.ahead} prompts waited before it; "
        "API keys take turns"
    )


def _reason(what: str, seconds: float | None, words: str) -> dict[str, Any]:
    return {"what": what, "seconds": None if seconds is None else round(seconds, 6), "why": words}
