"""/metrics: the engine's news and the server's requests as Prometheus series, under the field's names.

Kept once, with the prefix `thalweg:`, and shown under the prefixes asked for: dashboards and gateways look for `vllm:`.
A registry per server, never the global one, so that servers in one process do not mix.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    Summary,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from thalweg.config import EngineConfig
from thalweg.engine.client.process import RankHistory
from thalweg.engine.control.cache.groups import policy
from thalweg.engine.messages import Outputs, Stats
from thalweg.outputs import ABORTED, FINISH_REASONS, PoolingRequestOutput, RequestOutput
from thalweg.params import PoolingParams, SamplingParams
from thalweg.server.buckets import PER_TOKEN, REQUEST, families

HTTP_FINE = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60)
LABELS = ("model_name", "engine")
MOST_TRACKED = 100_000
UNCOUNTED = ("/metrics", "/health", "/livez", "/ready", "/readyz", "/load", "/ping", "/version", "/page/state")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
"""By level. The second is vLLM's name of level 1: here no level keeps weights in memory."""
OWN = "thalweg:"
PREFIXES = {"thalweg": (OWN,), "vllm": ("vllm:",), "both": (OWN, "vllm:")}
"""Values of --metrics-prefix."""
OLD_NAMES = {
    "vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds",
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    "vllm:prefix_cache_queries": "vllm:gpu_prefix_cache_queries",
    "vllm:prefix_cache_hits": "vllm:gpu_prefix_cache_hits",
    "vllm:prefix_cache_hit_rate": "vllm:gpu_prefix_cache_hit_rate",
}
"""Names for vLLM's older dashboards, only under that prefix."""

COUNTERS: tuple[tuple[str, str, Callable[[Stats], int]], ...] = (
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", lambda s: s.prefix_queries),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache", lambda s: s.prefix_hits),
    ("external_prefix_cache_queries", "Prompt tokens for which a KV store was asked", lambda s: s.store_queries),
    ("external_prefix_cache_hits", "Prompt tokens loaded from a KV store", lambda s: s.store_hits),
    ("kv_store_saved_bytes", "Bytes of KV blocks saved in a store", lambda s: s.store_saved),
    ("kv_store_failures", "Blocks and calls of a KV store that failed", lambda s: s.store_failed),
    ("num_preemptions", "Preempted requests", lambda s: s.preemptions),
    ("prompt_tokens", "Prompt tokens processed", lambda s: s.prompt_tokens),
    ("prompt_tokens_cached", "Prompt tokens that were cached", lambda s: s.prompt_cached),
    ("generation_tokens", "Tokens generated", lambda s: s.generated_tokens),
    ("spec_decode_num_drafts", "Draft rounds", lambda s: s.drafts),
    ("spec_decode_num_draft_tokens", "Drafted tokens", lambda s: s.draft_tokens),
    ("spec_decode_num_accepted_tokens", "Accepted draft tokens", lambda s: s.accepted_tokens),
)
"""Counters of each engine: name, meaning, value."""


class _Gaps:
    """A histogram of the time between tokens, filled many at a time. One observation per token would cost more than
    everything else the server does with it."""

    def __init__(self, buckets: Sequence[float]) -> None:
        self.edges = np.asarray(buckets)
        self.counts = np.zeros(len(buckets) + 1, np.int64)
        self.total = 0.0
        self._last: dict[int, float] = {}

    def frame(self, outputs: Outputs) -> None:
        now, last = outputs.time, self._last
        handles = outputs.handles.tolist()
        times = (
            collections.Counter(handles) if len(set(handles)) < len(handles) else None
        )  # several tokens of one came together
        gaps = [(now - last[h]) / (times[h] if times else 1) for h in handles if h in last]
        last.update(dict.fromkeys(handles, now))
        for done in outputs.finished:
            last.pop(done.handle, None)
        if gaps:
            values = np.asarray(gaps)
            self.counts += np.bincount(np.searchsorted(self.edges, values), minlength=len(self.counts))
            self.total += float(values.sum())
        if len(last) > MOST_TRACKED:  # aborted requests report no end, so forget the silent ones
            self._last = {h: t for h, t in last.items() if now - t < 60}

    def family(self, name: str, text: str, labels: Sequence[str]) -> HistogramMetricFamily:
        running = np.cumsum(self.counts).tolist()
        buckets = [(str(float(e)), n) for e, n in zip(self.edges, running, strict=False)] + [("+Inf", running[-1])]
        family = HistogramMetricFamily(name, text, labels=LABELS)
        family.add_metric(labels, buckets, self.total)
        return family


class EngineMetrics(Collector):
    """A StatLogger. Made before the engine, passed to it, and bound to the registry when the engine is known."""

    def __init__(self, buckets: Mapping[str, Any] | None = None) -> None:
        """buckets: upper bounds by family (`buckets.FAMILIES`), instead of ours."""
        self.registry = CollectorRegistry()
        self._buckets = buckets
        self._stats: Stats | None = None
        self._gaps = _Gaps((buckets or {}).get("inter_token_latency", PER_TOKEN))
        self._model, self._engine = "", "0"
        self._bound = False
        self.queued: Callable[[], int] = lambda: 0
        """Prompts that wait before the engine."""
        self.held: Callable[[], int] = lambda: 0
        """Prompts that wait until it is resumed or woken."""
        self.sleep_level: Callable[[], int] = lambda: 0
        self.ranks: Callable[[], Mapping[int, RankHistory]] = dict
        """The ranks of each engine, by its number."""
        self.engines: Callable[[], Mapping[int, Stats]] = dict
        """The snapshot of each engine, by number. {}: there is one, and `record` gets its own."""
        self.adapters: Callable[[], tuple[list[str], list[str]]] = lambda: ([], [])
        """Names of adapters with running sequences, and with waiting ones."""
        self._max_loras = 0

    def bind(self, model: str, config: EngineConfig) -> None:
        """Register every series, with buckets that fit the model. Once."""
        self._model, self._max_loras = model, config.scheduler.adapter_slots
        self._engine = str(config.first_engine)
        bounds = families(self._buckets, config.model.max_len)
        lengths, per_token, request = bounds["request_tokens"], bounds["inter_token_latency"], bounds["request_latency"]
        self._per_step = self._histogram("iteration_tokens_total", "Tokens per step", bounds["iteration_tokens"])
        first = bounds["time_to_first_token"]
        self._first = self._histogram("time_to_first_token_seconds", "Arrival to first token", first)
        self._mean_gap = self._histogram(
            "request_time_per_output_token_seconds", "Mean gap between tokens, per request", per_token
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to finish", request)
        self._queue = self._histogram("request_queue_time_seconds", "Time waiting to be scheduled", request)
        self._running = self._histogram("request_inference_time_seconds", "Time running", request)
        self._prefill = self._histogram("request_prefill_time_seconds", "Scheduled to first token", request)
        self._decode = self._histogram("request_decode_time_seconds", "First to last token", request)
        self._prompt = self._histogram("request_prompt_tokens", "Prompt length", lengths)
        self._made = self._histogram("request_generation_tokens", "Output length", lengths)
        self._longest = self._histogram("request_max_num_generation_tokens", "Longest of n outputs", lengths)
        self._n = self._histogram("request_params_n", "Requested n", bounds["request_params_n"])
        self._limit = self._histogram("request_params_max_tokens", "Requested max_tokens", lengths)
        self._computed = self._histogram("request_prefill_kv_computed_tokens", "Prompt tokens not cached", lengths)
        self._preempted = self._histogram(
            "request_num_preemptions", "Preemptions of a request", bounds["request_num_preemptions"]
        )
        self._success = Counter(
            f"{OWN}request_success", "Finished requests", (*LABELS, "finished_reason"), registry=self.registry
        )
        for reason in FINISH_REASONS:  # there from the start, at 0
            self._success.labels(model, self._engine, reason)
        info = _cache_info(config)
        gauge = Gauge(f"{OWN}cache_config_info", "Cache configuration, as labels", (*LABELS, *info), registry=self.registry)
        gauge.labels(model, self._engine, *info.values()).set(1)
        self.registry.register(self)
        self._bound = True

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        family = Histogram(f"{OWN}{name}", text, LABELS, buckets=buckets, registry=self.registry)
        return family.labels(self._model, self._engine)

    def record(self, outputs: Outputs) -> None:
        if not self._bound:
            return
        if outputs.stats is not None:
            self._stats = outputs.stats
        if outputs.step_tokens:
            self._per_step.observe(outputs.step_tokens)
        self._gaps.frame(outputs)

    def record_request(self, output: RequestOutput | PoolingRequestOutput[Any], params: SamplingParams | PoolingParams) -> None:
        if not self._bound:
            return
        if isinstance(output, RequestOutput) and isinstance(params, SamplingParams):
            self._record_generation(output, params)
        elif isinstance(output, PoolingRequestOutput):
            self._observe_pooling(output)

    def _observe_pooling(self, output: PoolingRequestOutput[Any]) -> None:
        """The same series for a request without tokens: no first token, and no time between tokens."""
        reason = "stop" if output.error is None else "abort" if output.error == ABORTED else "error"
        self._success.labels(self._model, self._engine, reason).inc()
        prompt, metrics = len(output.prompt_token_ids), output.metrics
        self._prompt.observe(prompt)
        self._computed.observe(prompt - output.num_cached_tokens)
        if metrics is None or not metrics.last_token_ts:
            return
        self._preempted.observe(metrics.num_preemptions)
        self._e2e.observe(metrics.last_token_ts - metrics.arrival_time)
        if metrics.scheduled_ts:
            self._queue.observe(max(0.0, metrics.scheduled_ts - metrics.queued_ts))
            self._running.observe(metrics.last_token_ts - metrics.scheduled_ts)
            self._prefill.observe(metrics.last_token_ts - metrics.scheduled_ts)

    def _record_generation(self, output: RequestOutput, params: SamplingParams) -> None:
        lengths = [len(c.token_ids) for c in output.outputs]
        metrics = output.metrics
        total = metrics.num_generation_tokens if metrics and metrics.num_generation_tokens else sum(lengths)
        prompt = len(output.prompt_token_ids or ())
        reason = next((c.finish_reason for c in reversed(output.outputs) if c.finish_reason is not None), "abort")
        self._success.labels(self._model, self._engine, reason).inc()
        self._prompt.observe(prompt)
        self._made.observe(total)
        self._longest.observe(metrics.max_num_generation_tokens if metrics else max(lengths, default=0))
        self._n.observe(params.n)
        if params.max_tokens is not None:
            self._limit.observe(params.max_tokens)
        self._computed.observe(prompt - (output.num_cached_tokens or 0))
        if metrics is not None:
            self._preempted.observe(metrics.num_preemptions)
        if metrics is None or not metrics.first_token_ts:
            return
        first, last = metrics.first_token_ts, metrics.last_token_ts
        self._first.observe(first - metrics.arrival_time)
        self._e2e.observe(last - metrics.arrival_time)
        self._queue.observe(max(0.0, metrics.scheduled_ts - metrics.queued_ts))
        self._running.observe(last - metrics.scheduled_ts)
        self._prefill.observe(first - metrics.scheduled_ts)
        self._decode.observe(last - first)
        if total > params.n:
            self._mean_gap.observe((last - first) / (total / params.n - 1))

    def describe(self) -> Iterable[Metric]:
        """Nothing to announce: it is registered once, and collect() names the metrics."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The engine's own counters, as of its latest snapshot."""
        labels, queued, held = (self._model, self._engine), self.queued(), self.held()
        each = self._by_engine()
        first = next(iter(each.values()))
        waiting = {engine: s.waiting + (queued if s is first else 0) for engine, s in each.items()}
        yield self._gauge("num_requests_running", "Requests in execution", {e: s.running for e, s in each.items()})
        more = {e: n + (held if each[e] is first else 0) for e, n in waiting.items()}
        yield self._gauge("num_requests_waiting", "Requests queued", more)
        used = {e: s.blocks_used / max(1, s.blocks_total) for e, s in each.items()}
        yield self._gauge("kv_cache_usage_perc", "KV cache use, 0 to 1", used)
        found = {e: s.prefix_hits / max(1, s.prefix_queries) for e, s in each.items()}
        yield self._gauge("prefix_cache_hit_rate", "Prefix cache hits, 0 to 1", found)
        why = GaugeMetricFamily(
            f"{OWN}num_requests_waiting_by_reason", "Requests queued, by reason", labels=(*LABELS, "reason")
        )
        for engine, s in each.items():
            why.add_metric((self._model, engine, "capacity"), waiting[engine])
            why.add_metric((self._model, engine, "deferred"), held if s is first else 0)
        yield why
        sleep = GaugeMetricFamily(f"{OWN}engine_sleep_state", "1 for the state it is in", labels=(*LABELS, "sleep_state"))
        for engine in each:
            for level, state in enumerate(SLEEP_STATES):
                sleep.add_metric((self._model, engine, state), int(level == self.sleep_level()))
        yield sleep
        if self._max_loras:
            yield self._adapter_info()
        for name, text, count in COUNTERS:
            counter = CounterMetricFamily(f"{OWN}{name}", text, labels=LABELS)
            for engine, s in each.items():
                counter.add_metric((self._model, engine), count(s))
            yield counter
        source = CounterMetricFamily(f"{OWN}prompt_tokens_by_source", "Prompt tokens, by source", labels=(*LABELS, "source"))
        name, text = f"{OWN}spec_decode_num_accepted_tokens_per_pos", "Accepted draft tokens by position"
        accepted = CounterMetricFamily(name, text, labels=(*LABELS, "position"))
        for engine, s in each.items():
            source.add_metric((self._model, engine, "local_compute"), s.prompt_tokens - s.prompt_cached)
            source.add_metric((self._model, engine, "local_cache_hit"), s.prompt_cached - s.prompt_stored)
            source.add_metric((self._model, engine, "external_kv_transfer"), s.prompt_stored)
            for position, value in enumerate(s.accepted_per_position):
                accepted.add_metric((self._model, engine, str(position)), value)
        yield from (source, accepted)
        yield from self._describe_ranks()
        yield self._gaps.family(f"{OWN}inter_token_latency_seconds", "Gap between tokens", labels)

    def _describe_ranks(self) -> Iterator[Metric]:
        """Series of engines with several ranks."""
        labels = (*LABELS, "rank")
        read = GaugeMetricFamily(f"{OWN}rank_read_bytes", "Bytes of weights that a rank has read from files", labels=labels)
        starts = CounterMetricFamily(f"{OWN}rank_restarts", "Restarts of a rank", labels=labels)
        for number, history in self.ranks().items():
            engine = str(int(self._engine) + number)
            for rank, facts in history.latest.items():
                read.add_metric((self._model, engine, str(rank)), facts.read_bytes)
                starts.add_metric((self._model, engine, str(rank)), history.restarts[rank])
        yield from (family for family in (read, starts) if family.samples)

    def _by_engine(self) -> dict[str, Stats]:
        """Snapshots by the label of their engine. What belongs to no engine, such as the queue before them, is counted with the
        first."""
        each = {str(int(self._engine) + number): stats for number, stats in self.engines().items()}
        return each or {self._engine: self._stats or Stats(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)}

    def _gauge(self, name: str, text: str, values: Mapping[str, float]) -> GaugeMetricFamily:
        """values: by the label of the engine."""
        gauge = GaugeMetricFamily(f"{OWN}{name}", text, labels=LABELS)
        for engine, value in values.items():
            gauge.add_metric((self._model, engine), value)
        return gauge

    def _adapter_info(self) -> Metric:
        """Routers send requests where their adapter already runs. The value is the time, in seconds since 1970."""
        running, waiting = self.adapters()
        named = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
        info = GaugeMetricFamily(f"{OWN}lora_requests_info", "Adapters in use, as labels", labels=(*LABELS, *named))
        values = (str(self._max_loras), ",".join(running), ",".join(waiting))
        info.add_metric((self._model, self._engine, *values), time.time())
        return info


def _cache_info(config: EngineConfig) -> dict[str, str]:
    """The labels of cache_config_info. Tokens are those of the groups that keep every token. Scratch blocks hold
    none."""
    cache = config.cache
    kept = [(g.block_tokens * (n - 1), policy(g).whole) for n, g in zip(cache.blocks, cache.groups, strict=False)]
    each = [n for n, whole in kept if whole] or [n for n, _ in kept] or [(n - 1) * cache.block_tokens for n in cache.blocks]
    tokens = min(each, default=0)
    return {
        "block_size": str(cache.block_tokens),
        "cache_dtype": cache.dtype or "auto",
        "num_gpu_blocks": str(cache.blocks[0] if cache.blocks else 0),
        "enable_prefix_caching": str(cache.prefix_caching),
        "kv_cache_size_tokens": str(tokens),
        "kv_cache_max_concurrency": f"{tokens / config.model.max_len:.3f}",
    }


class HttpMetrics:
    """Requests of the server itself, by known path (others count as "other", so that untrusted clients cannot make series)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.load = 0
        """Requests in flight that go to the engine."""
        self.paths: frozenset[str] = frozenset()
        self.working: frozenset[str] = frozenset()
        """Paths of requests to the engine."""
        self._requests = Counter("http_requests", "HTTP requests", ("method", "status", "handler"), registry=registry)
        self._seconds = Histogram(
            "http_request_duration_seconds", "HTTP request duration", ("method", "handler"), buckets=REQUEST, registry=registry
        )
        self._fine = Histogram(
            "http_request_duration_highr_seconds", "HTTP request duration, finely", buckets=HTTP_FINE, registry=registry
        )
        self._request_bytes = Summary("http_request_size_bytes", "Bytes of bodies announced", ("handler",), registry=registry)
        self._response_bytes = Summary("http_response_size_bytes", "Bytes of whole answers", ("handler",), registry=registry)
        self._unknown = Counter(
            f"{OWN}unknown_request_fields", "Request fields that were not known, and ignored", ("field",), registry=registry
        )
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

    @contextmanager
    def in_flight(self, path: str) -> Iterator[None]:
        counted = path in self.working
        self.load += counted
        try:
            yield
        finally:
            self.load -= counted

    def unknown_field(self, name: str) -> None:
        """A request had a field of this name, which is one of few (see core.fields)."""
        self._unknown.labels(name).inc()

    def observe(self, path: str, method: str, status: int, seconds: float, took: int = 0, gave: int = 0) -> None:
        """took, gave: bytes of the bodies where their header says it. A stream's does not."""
        handler = path if path in self.paths else "other"
        if path.removesuffix("/") in UNCOUNTED:
            return
        self._fine.observe(seconds)
        self._request_bytes.labels(handler).observe(took)
        self._response_bytes.labels(handler).observe(gave)
        method = method if method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH") else "other"
        self._requests.labels(method, str(status), handler).inc()
        self._seconds.labels(method, handler).observe(seconds)


class MergedCollector(Collector):
    """The series of several registries as one family of each name. Labels distinguish them."""

    def __init__(self, registries: Mapping[str, CollectorRegistry]) -> None:
        """registries: may grow later."""
        self._registries = registries

    def describe(self) -> Iterable[Metric]:
        """Nothing to announce: collect() names the metrics."""
        return ()

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for registry in list(self._registries.values()):
            for family in registry.collect():
                whole = families.get(family.name)
                if whole is None:
                    whole = families[family.name] = Metric(family.name, family.documentation, family.type, family.unit)
                whole.samples.extend(family.samples)
        yield from families.values()


class _PrefixedRegistry(CollectorRegistry):
    """A registry's series under other prefixes."""

    def __init__(self, registry: CollectorRegistry, prefixes: Sequence[str]) -> None:
        super().__init__()
        self._source, self._prefixes = registry, prefixes

    def collect(self) -> Iterator[Metric]:
        for family in self._source.collect():
            if not family.name.startswith(OWN):
                yield family
                continue
            for prefix in self._prefixes:
                name = prefix + family.name.removeprefix(OWN)
                yield family if prefix == OWN else _rename(family, name)
                if name in OLD_NAMES:
                    yield _rename(family, OLD_NAMES[name])


def _rename(family: Metric, name: str) -> Metric:
    out = Metric(name, family.documentation, family.type, family.unit)
    out.samples = [s._replace(name=name + s.name.removeprefix(family.name)) for s in family.samples]
    return out


def exposition(registry: CollectorRegistry, prefix: str = "both") -> tuple[bytes, str]:
    """The text and its content type. prefix: one of PREFIXES."""
    return generate_latest(_PrefixedRegistry(registry, PREFIXES[prefix])), CONTENT_TYPE_LATEST
