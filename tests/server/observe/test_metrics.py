"""/metrics costs the event loop the same however often it is asked for."""

from __future__ import annotations

import pytest

from thalweg.server.operators import metrics as routes


def test_an_exposition_is_written_once_in_a_while(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "FRESH_SECONDS", 1.0)
    now, written, own = [100.0], [], routes.exposition
    monkeypatch.setattr(routes, "monotonic", lambda: now[0])
    monkeypatch.setattr(routes, "exposition", lambda *given: written.append(now[0]) or own(*given))
    running, other = start(), start()
    first = running.get("/metrics")
    for _ in range(20):
        now[0] += 0.04
        assert running.get("/metrics").content == first.content
    assert running.http.head("/metrics").headers["content-length"] == str(len(first.content))
    now[0] = 101.0
    later = running.get("/metrics")
    assert (later.headers["content-type"], first.headers["content-type"]) == (routes.exposition(*_given(running))[1],) * 2
    assert later.status_code == 200
    other.get("/metrics")
    assert written[:3] == [100.0, 101.0, 101.0]


def _given(running):
    return running.app.serving.traffic.registry, running.settings.metrics_prefix


def test_after_that_it_tells_what_happened(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "FRESH_SECONDS", 1.0)
    now = [100.0]
    monkeypatch.setattr(routes, "monotonic", lambda: now[0])
    running, counted = start(), 'http_requests_total{handler="/v1/models",method="GET",status="200"} 1.0'
    assert counted not in running.get("/metrics").text
    running.get("/v1/models")
    assert counted not in running.get("/metrics").text
    now[0] += 1.0
    assert counted in running.get("/metrics").text
