"""Spans as OpenTelemetry's own in-memory exporter gets them: names, parents, times, attributes."""

from __future__ import annotations

import sys
import time

import pytest
from conftest import Running
from fake_engine import FakeEngine

from thalweg.errors import ConfigError
from thalweg.server.observe import traces
from thalweg.server.settings import ServerSettings

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY = {"model": "fake", "prompt": "x", "max_tokens": 4, "temperature": 0.5}


class Memory:
    """A server whose spans stay here."""

    def __init__(self, engine: FakeEngine) -> None:
        export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter", reason="thalweg[otel]")
        self.exporter = export.InMemorySpanExporter()
        self.traces = traces.Traces(self.exporter)
        self.running = Running(engine, ServerSettings(), self.traces)

    def spans(self):
        self.traces._provider.force_flush()
        return self.exporter.get_finished_spans()


class Timed(FakeEngine):
    """Its clock is the real one, as the engine's is."""

    def _request(self, request_id, ids, params, *rest):
        loggers, self.loggers = self.loggers, ()
        output, self.loggers = super()._request(request_id, ids, params, *rest), loggers
        now = time.monotonic()
        m = output.metrics
        m.arrival_time, m.queued_ts, m.scheduled_ts, m.first_token_ts, m.last_token_ts = (now - d for d in (4, 4, 3, 2, 0))
        for logger in loggers if output.finished else ():
            logger.record_request(output, params)
        return output


@pytest.fixture
def memory():
    made = Memory(Timed())
    yield made
    made.running.stop()
    made.traces.close()


def test_a_request_is_a_span_under_the_clients_own(memory) -> None:
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "x-request-id": "mine"}
    before = time.time()
    memory.running.post("/v1/completions", BODY, headers=headers)
    memory.running.post("/v1/completions", {**BODY, "stream": True, "max_tokens": 6})
    memory.running.post("/v1/completions", {**BODY, "stream": True}, headers=headers)
    first, second, third = memory.spans()
    assert third.parent.span_id == first.parent.span_id
    assert first.name == "llm_request"
    assert (f"{first.context.trace_id:032x}", f"{first.parent.span_id:016x}") == (TRACE, SPAN)
    assert second.parent is None
    assert first.resource.attributes["service.name"] == "thalweg"
    assert abs(first.start_time / 1e9 - (before - 4)) < 60
    assert first.end_time - first.start_time == pytest.approx(4e9, rel=0.01)
    told = dict(first.attributes)
    assert told.pop("gen_ai.request.id").startswith("cmpl-mine")
    latencies = {k.removeprefix("gen_ai.latency."): told.pop(k) for k in list(told) if "latency" in k}
    assert {k: round(v, 3) for k, v in latencies.items()} == {
        "e2e": 4, "time_in_queue": 1, "time_in_model_inference": 3, "time_to_first_token": 2, "time_in_model_prefill": 1,
        "time_in_model_decode": 2,
    }  # fmt: skip
    assert told == {
        "gen_ai.response.model": "fake", "gen_ai.usage.prompt_tokens": 1, "gen_ai.usage.completion_tokens": 4,
        "gen_ai.usage.num_sequences": 1, "gen_ai.request.n": 1, "gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 1.0,
        "gen_ai.request.max_tokens": 4,
    }  # fmt: skip
    assert second.attributes["gen_ai.usage.completion_tokens"] == 6


def test_what_failed_is_marked_and_nonsense_headers_harm_nobody(memory) -> None:
    memory.running.post("/v1/completions", {**BODY, "prompt": "!fail"}, headers={"traceparent": "00-nonsense"})
    (span,) = memory.spans()
    assert not span.status.is_ok
    assert span.parent is None


def test_without_the_library_it_is_refused_in_words(monkeypatch) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"--otlp-traces-endpoint: .*thalweg\[otel\]"):
        traces.exporter("http://127.0.0.1:4317")


def test_a_protocol_nobody_speaks_is_refused_by_its_variable(monkeypatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "smoke")
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_PROTOCOL"):
        traces.exporter("http://127.0.0.1:4317")
