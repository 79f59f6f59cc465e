"""Traces: a span `llm_request` per request that the engine finishes, sent to an OpenTelemetry collector. It stands under the
span that the client named (`traceparent`). Names of spans and attributes are vLLM's.

The library is optional: `pip install 'thalweg[otel]'`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from thalweg.engine.messages import Outputs
from thalweg.errors import ConfigError
from thalweg.host import envs
from thalweg.outputs import PoolingRequestOutput, RequestMetrics, RequestOutput
from thalweg.params import PoolingParams, SamplingParams

SPAN = "llm_request"
HEADERS = (b"traceparent", b"tracestate")
LAST_SECONDS = 2.0
ABSENT = "--otlp-traces-endpoint: OpenTelemetry is not installed: pip install 'thalweg[otel]'"
_headers: ContextVar[dict[str, str] | None] = ContextVar("trace_headers", default=None)


def exporter(endpoint: str) -> Any:
    """Sends spans to the collector at `endpoint`, by gRPC or over HTTP as OTEL_EXPORTER_OTLP_TRACES_PROTOCOL says. ConfigError
    if the library is absent."""
    protocol = envs.otlp_protocol()
    try:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

            return Grpc(endpoint=endpoint)
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

        return Http(endpoint=endpoint)
    except ImportError:
        raise ConfigError(ABSENT) from None


class Traces:
    """A StatLogger. `model` is set when the engine is known."""

    def __init__(self, exporter: Any) -> None:
        """exporter: an OpenTelemetry SpanExporter. Spans go to it in batches, on a thread of the library's."""
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import SpanKind, Status, StatusCode
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            raise ConfigError(ABSENT) from None
        named = {} if envs.otel_service_name() else {"service.name": "thalweg"}
        self._provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("thalweg")
        self._propagator = TraceContextTextMapPropagator()
        self._kind, self._failed = SpanKind.SERVER, Status(StatusCode.ERROR)
        self._parents: dict[str, Any] = {}
        self.model = ""

    def of_model(self, model: str) -> Traces:
        """Traces of another model, sent by the same exporter."""
        other = copy(self)
        other.model, other._parents = model, {}
        return other

    @contextmanager
    def under_way(self, request_id: str) -> Iterator[None]:
        """A request with this id is at the engine, asked for by the HTTP request of this context."""
        self._parents[request_id] = self._propagator.extract(_headers.get() or {})
        try:
            yield
        finally:
            self._parents.pop(request_id, None)

    def record(self, outputs: Outputs) -> None:
        """Steps leave no spans."""

    def record_request(self, output: RequestOutput | PoolingRequestOutput[Any], params: SamplingParams | PoolingParams) -> None:
        metrics = output.metrics
        if metrics is None or not metrics.arrival_time:
            return
        wall = time.time() - time.monotonic()
        end = metrics.last_token_ts or time.monotonic()
        span = self._tracer.start_span(
            SPAN, self._parents.get(output.request_id), self._kind, start_time=int((metrics.arrival_time + wall) * 1e9)
        )
        span.set_attributes({"gen_ai.request.id": output.request_id, "gen_ai.response.model": self.model})
        span.set_attributes(_request(output, params))
        span.set_attributes(_latencies(metrics, end))
        if output.error is not None:
            span.set_status(self._failed)
        span.end(int((end + wall) * 1e9))

    def close(self) -> None:
        """Send remaining spans, for at most LAST_SECONDS."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(LAST_SECONDS)


def _request(output: RequestOutput | PoolingRequestOutput[Any], params: SamplingParams | PoolingParams) -> dict[str, Any]:
    result: dict[str, Any] = {"gen_ai.usage.prompt_tokens": len(output.prompt_token_ids or ())}
    if isinstance(output, RequestOutput) and isinstance(params, SamplingParams):
        result |= {
            "gen_ai.usage.completion_tokens": output.metrics.num_generation_tokens if output.metrics else 0,
            "gen_ai.usage.num_sequences": len(output.outputs),
            "gen_ai.request.n": params.n,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
        }
        if params.max_tokens is not None:
            result["gen_ai.request.max_tokens"] = params.max_tokens
    return result


def _latencies(m: RequestMetrics, end: float) -> dict[str, float]:
    """Seconds. Phases that were not reached are absent."""
    result = {"gen_ai.latency.e2e": end - m.arrival_time}
    if m.scheduled_ts:
        result["gen_ai.latency.time_in_queue"] = max(0.0, m.scheduled_ts - m.queued_ts)
        result["gen_ai.latency.time_in_model_inference"] = end - m.scheduled_ts
    if m.first_token_ts:
        result["gen_ai.latency.time_to_first_token"] = m.first_token_ts - m.arrival_time
        result["gen_ai.latency.time_in_model_prefill"] = m.first_token_ts - m.scheduled_ts
        result["gen_ai.latency.time_in_model_decode"] = end - m.first_token_ts
    return result


class TraceHeaders:
    """Keeps the client's trace headers for the spans of its requests."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            _headers.set({k.decode(): v.decode("latin-1") for k, v in scope["headers"] if k in HEADERS})
        await self.app(scope, receive, send)
