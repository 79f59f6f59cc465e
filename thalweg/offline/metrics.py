"""The result of `get_metrics`: the counters and gauges of an engine, as objects with a name, labels and a value."""

from __future__ import annotations

from dataclasses import dataclass, field

from thalweg.engine.messages import Stats


@dataclass(frozen=True)
class Metric:
    name: str
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Counter(Metric):
    """Only grows."""

    value: int = 0


@dataclass(frozen=True)
class Gauge(Metric):
    value: float = 0.0


@dataclass(frozen=True)
class Vector(Metric):
    """A counter for each place of something."""

    values: list[int] = field(default_factory=list)


def snapshot(model: str, s: Stats) -> list[Metric]:
    """The names are those of /metrics, without the suffix _total of counters."""
    labels = {"model_name": model, "engine": "0"}
    used = s.blocks_used / s.blocks_total if s.blocks_total else 0.0
    gauges = {"num_requests_running": s.running, "num_requests_waiting": s.waiting, "kv_cache_usage_perc": used}
    counters = {
        "prefix_cache_queries": s.prefix_queries,
        "prefix_cache_hits": s.prefix_hits,
        "external_prefix_cache_queries": s.store_queries,
        "external_prefix_cache_hits": s.store_hits,
        "num_preemptions": s.preemptions,
        "prompt_tokens": s.prompt_tokens,
        "prompt_tokens_cached": s.prompt_cached,
        "generation_tokens": s.generated_tokens,
        "spec_decode_num_drafts": s.drafts,
        "spec_decode_num_draft_tokens": s.draft_tokens,
        "spec_decode_num_accepted_tokens": s.accepted_tokens,
    }
    return [
        *(Gauge(f"vllm:{name}", labels, float(value)) for name, value in gauges.items()),
        *(Counter(f"vllm:{name}", labels, value) for name, value in counters.items()),
        Vector("vllm:spec_decode_num_accepted_tokens_per_pos", labels, list(s.accepted_per_position)),
    ]
