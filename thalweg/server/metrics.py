"""/metrics: the engine's news and the server's requests as Prometheus series, under the field's names with prefix `thalweg:`.

A registry per server, never the global one, so that servers in one process do not mix.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from thalweg.config import EngineConfig
from thalweg.engine.messages import Outputs, Stats
from thalweg.outputs import RequestOutput
from thalweg.params import SamplingParams

FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
LABELS = ("model_name", "engine")
ENGINE = "0"
MOST_TRACKED = 100_000
GENERATING = ("/v1/completions", "/v1/chat/completions")


def steps_125(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 ... up to `limit`."""
    found = [m * 10**e for e in range(12) for m in (1, 2, 5)]
    return tuple(float(v) for v in found if v <= limit) or (1.0,)


class _Gaps:
    """A histogram of the time between tokens, filled many at a time: one observation per token would cost more than
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
        if len(last) > MOST_TRACKED:  # aborted requests report no end; forget the silent ones
            self._last = {h: t for h, t in last.items() if now - t < 60}

    def family(self, name: str, text: str, labels: Sequence[str]) -> HistogramMetricFamily:
        running = np.cumsum(self.counts).tolist()
        buckets = [(str(float(e)), n) for e, n in zip(self.edges, running, strict=False)] + [("+Inf", running[-1])]
        family = HistogramMetricFamily(name, text, labels=LABELS)
        family.add_metric(labels, buckets, self.total)
        return family


class EngineMetrics(Collector):
    """A StatLogger. Made before the engine (which is told of it), bound to the registry when the engine is known."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._stats: Stats | None = None
        self._gaps = _Gaps(PER_TOKEN)
        self._model = ""
        self._bound = False
        self.queued: Callable[[], int] = lambda: 0
        """Prompts that wait before the engine."""

    def bind(self, model: str, config: EngineConfig) -> None:
        """Register every series, with buckets that fit the model. Once."""
        self._model = model
        lengths = steps_125(config.model.max_len)
        self._per_step = self._histogram("iteration_tokens_total", "Tokens per step", STEP_TOKENS)
        self._first = self._histogram("time_to_first_token_seconds", "Arrival to first token", FIRST_TOKEN)
        self._mean_gap = self._histogram(
            "request_time_per_output_token_seconds", "Mean gap between tokens, per request", PER_TOKEN
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to finish", REQUEST)
        self._queue = self._histogram("request_queue_time_seconds", "Time waiting to be scheduled", REQUEST)
        self._running = self._histogram("request_inference_time_seconds", "Time running", REQUEST)
        self._prefill = self._histogram("request_prefill_time_seconds", "Scheduled to first token", REQUEST)
        self._decode = self._histogram("request_decode_time_seconds", "First to last token", REQUEST)
        self._prompt = self._histogram("request_prompt_tokens", "Prompt length", lengths)
        self._made = self._histogram("request_generation_tokens", "Output length", lengths)
        self._longest = self._histogram("request_max_num_generation_tokens", "Longest of n outputs", lengths)
        self._n = self._histogram("request_params_n", "Requested n", (1, 2, 5, 10, 20))
        self._limit = self._histogram("request_params_max_tokens", "Requested max_tokens", lengths)
        self._computed = self._histogram("request_prefill_kv_computed_tokens", "Prompt tokens not cached", lengths)
        self._success = Counter(
            "thalweg:request_success", "Finished requests", (*LABELS, "finished_reason"), registry=self.registry
        )
        info = {
            "block_size": str(config.cache.block_tokens),
            "num_gpu_blocks": str(config.cache.blocks[0] if config.cache.blocks else 0),
            "enable_prefix_caching": str(config.cache.prefix_caching),
        }
        names = (*LABELS, *info)
        gauge = Gauge("thalweg:cache_config_info", "Cache configuration, as labels", names, registry=self.registry)
        gauge.labels(model, ENGINE, *info.values()).set(1)
        self.registry.register(self)
        self._bound = True

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        family = Histogram(f"thalweg:{name}", text, LABELS, buckets=buckets, registry=self.registry)
        return family.labels(self._model, ENGINE)

    def record(self, outputs: Outputs) -> None:
        if not self._bound:
            return
        if outputs.stats is not None:
            self._stats = outputs.stats
        if len(outputs.tokens):
            self._per_step.observe(len(outputs.tokens))
        self._gaps.frame(outputs)

    def finished(self, output: RequestOutput, params: SamplingParams) -> None:
        if not self._bound:
            return
        lengths = [len(c.token_ids) for c in output.outputs]
        metrics = output.metrics
        total = metrics.num_generation_tokens if metrics and metrics.num_generation_tokens else sum(lengths)
        prompt = len(output.prompt_token_ids or ())
        reason = next((c.finish_reason for c in reversed(output.outputs) if c.finish_reason is not None), "abort")
        self._success.labels(self._model, ENGINE, reason).inc()
        self._prompt.observe(prompt)
        self._made.observe(total)
        self._longest.observe(metrics.max_num_generation_tokens if metrics else max(lengths, default=0))
        self._n.observe(params.n)
        if params.max_tokens is not None:
            self._limit.observe(params.max_tokens)
        self._computed.observe(prompt - (output.num_cached_tokens or 0))
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
        """Nothing to announce: it is registered once, and collect() names what there is."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The engine's own counters, as of its latest snapshot."""
        labels = (self._model, ENGINE)
        s = self._stats or Stats(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        for name, text, value in (
            ("num_requests_running", "Requests in execution", s.running),
            ("num_requests_waiting", "Requests queued", s.waiting + self.queued()),
            ("kv_cache_usage_perc", "KV cache use, 0 to 1", s.blocks_used / max(1, s.blocks_total)),
        ):
            gauge = GaugeMetricFamily(f"thalweg:{name}", text, labels=LABELS)
            gauge.add_metric(labels, value)
            yield gauge
        for name, text, value in (
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", s.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache", s.prefix_hits),
            ("num_preemptions", "Preempted requests", s.preemptions),
            ("prompt_tokens", "Prompt tokens processed", s.prompt_tokens),
            ("generation_tokens", "Tokens generated", s.generated_tokens),
            ("spec_decode_num_drafts", "Draft rounds", s.drafts),
            ("spec_decode_num_draft_tokens", "Drafted tokens", s.draft_tokens),
            ("spec_decode_num_accepted_tokens", "Accepted draft tokens", s.accepted_tokens),
        ):
            counter = CounterMetricFamily(f"thalweg:{name}", text, labels=LABELS)
            counter.add_metric(labels, value)
            yield counter
        name, text = "thalweg:spec_decode_num_accepted_tokens_per_pos", "Accepted draft tokens by position"
        counter = CounterMetricFamily(name, text, labels=(*LABELS, "position"))
        for position, value in enumerate(s.accepted_per_position):
            counter.add_metric((*labels, str(position)), value)
        yield counter
        yield self._gaps.family("thalweg:inter_token_latency_seconds", "Gap between tokens", labels)


class HttpMetrics:
    """Requests of the server itself, by known path (others count as "other", so that strangers cannot make series)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.load = 0
        """Generating requests in flight."""
        self.paths: frozenset[str] = frozenset()
        self._requests = Counter("http_requests", "HTTP requests", ("method", "status", "handler"), registry=registry)
        self._seconds = Histogram(
            "http_request_duration_seconds", "HTTP request duration", ("method", "handler"), buckets=REQUEST, registry=registry
        )

    @contextmanager
    def in_flight(self, path: str) -> Iterator[None]:
        counted = path in GENERATING
        self.load += counted
        try:
            yield
        finally:
            self.load -= counted

    def done(self, path: str, method: str, status: int, seconds: float) -> None:
        handler = path if path in self.paths else "other"
        if handler in ("/metrics", "/health", "/livez", "/readyz", "/load", "/ping", "/version"):
            return
        method = method if method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH") else "other"
        self._requests.labels(method, str(status), handler).inc()
        self._seconds.labels(method, handler).observe(seconds)


def exposition(registry: CollectorRegistry) -> tuple[bytes, str]:
    """The text and its content type."""
    return generate_latest(registry), CONTENT_TYPE_LATEST
