"""/v1/requests/{id}/why: what a request waited for, while it waits and after."""

from __future__ import annotations

import threading
import time

import httpx
import pytest
from fake_engine import FakeEngine

from thalweg.outputs import CompletionOutput, RequestMetrics, RequestOutput
from thalweg.params import SamplingParams
from thalweg.server.observe.recent import MOST_REQUESTS, RecentRequests, Record
from thalweg.server.operators.why import HELD

BODY = {"model": "fake", "prompt": "x", "max_tokens": 4}


class Timed(FakeEngine):
    """Requests that waited two seconds for the cache, and were preempted."""

    def _request(self, request_id, ids, params, *rest):
        loggers, self.loggers = self.loggers, ()
        output, self.loggers = super()._request(request_id, ids, params, *rest), loggers
        now = time.monotonic()
        output.metrics = RequestMetrics(now, now, now + 2, now + 3, now + 6, 4, 4, 2, 5, "cache")
        for logger in loggers if output.finished else ():
            logger.record_request(output, params)
        return output


def why(running, name: str, **fields):
    return running.get(f"/v1/requests/{name}/why", **fields).json()


def test_an_answered_request_says_where_its_time_went(start) -> None:
    running = start(Timed())
    name = running.post("/v1/completions", BODY).json()["id"]
    told = why(running, name)
    assert (told["id"], told["state"], told["engine"], told["engine_restarts"]) == (name, "ended", "ready", 0)
    (part,) = told["parts"]
    assert (part["state"], part["finish_reason"], part["preemptions"], part["chunks"]) == ("ended", "length", 2, 5)
    assert part["generated_tokens"] == 4
    reasons = {r["what"]: r["why"] for r in part["reasons"]}
    assert reasons["queue"] == HELD["cache"]
    assert "in 5 chunks; 3 were cached" in reasons["prefill"]
    assert reasons["preemption"].startswith("2 times")
    assert why(running, name.partition("-")[2])["id"] == name


@pytest.mark.slow
def test_while_it_waits_it_says_for_what(start) -> None:
    """The engine has room for ten sequences: eight, and two more that it never waits for."""
    running = start(FakeEngine(delay=0.5), max_queued_requests=50)
    body = {**BODY, "max_tokens": 100}

    def ask(i: int) -> None:
        try:
            httpx.post(f"{running.url}/v1/completions", json=body, headers={"x-request-id": f"r{i}"}, timeout=60)
        except httpx.TimeoutException:
            return

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    admission = running.app.serving.admission
    for thread in threads[:10]:
        thread.start()
    while admission.running < 10:
        time.sleep(0.01)
    for thread in threads[10:]:
        thread.start()
    while admission.waiting < 2:
        time.sleep(0.01)
    told = [why(running, f"r{i}")["parts"][0] for i in range(12)]
    at_the_door = [p for p in told if p["state"] == "waiting at the door"]
    assert len(at_the_door) == 2
    assert "10 of 10 sequences were at the engine when it came" in at_the_door[0]["reasons"][0]["why"]
    assert {p["state"] for p in told if p not in at_the_door} == {"computing the prompt"}
    while any(thread.is_alive() for thread in threads):
        running.engine.told_to_end.update(running.engine.running)
        time.sleep(0.01)


def test_only_the_key_that_asked_is_told(start) -> None:
    running = start(api_key=["a", "b"])
    keys = [{"authorization": f"Bearer {k}"} for k in "ab"]
    name = running.post("/v1/completions", BODY, headers=keys[0]).json()["id"]
    assert running.get(f"/v1/requests/{name}/why", headers=keys[0]).status_code == 200
    assert running.get(f"/v1/requests/{name}/why", headers=keys[1]).status_code == 404
    assert running.get(f"/v1/requests/{name}/why").status_code == 401


def test_unknown_requests_are_404(server) -> None:
    assert server.get("/v1/requests/nobody/why").status_code == 404


@pytest.fixture
def recent() -> RecentRequests:
    return RecentRequests(clock=iter(range(10**6)).__next__)


def record(name: str) -> Record:
    return Record(name, "", "m", 1, 0.0, 0, 0, 0)


def test_the_oldest_are_forgotten(recent: RecentRequests) -> None:
    for i in range(MOST_REQUESTS + 3):
        recent.add(record(f"cmpl-{i}"))
    assert recent.find("cmpl-2", "") is None
    assert recent.find("2", "") is None
    assert recent.find("3", "") is not None


def test_a_reader_that_went_away_ends_its_part(recent: RecentRequests) -> None:
    recent.add(record("cmpl-a"))
    with recent.under_way("cmpl-a-0"):
        assert recent.find("a", "").parts["cmpl-a-0"].how == ""
    assert recent.find("a", "").parts["cmpl-a-0"].how == "abort"
    with recent.under_way("cmpl-a-1"):
        output = RequestOutput("cmpl-a-1", None, [1, 2], None, [CompletionOutput(0, "", [], finish_reason="stop")], True)
        recent.record_request(output, SamplingParams())
    assert recent.find("a", "").parts["cmpl-a-1"].how == "stop"
    with recent.under_way("cmpl-unknown-0"):
        pass


@pytest.mark.slow
def test_keys_that_choose_the_same_name_have_requests_of_their_own(start) -> None:
    """While both run, and after: what one key says of a request is never another's."""
    running = start(FakeEngine(delay=0.05), api_key=["a", "b"])
    answers: dict[str, httpx.Response] = {}

    def headers(key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}", "X-Request-Id": "job-1"}

    def ask(key: str, max_tokens: int) -> None:
        body = {**BODY, "max_tokens": max_tokens, "ignore_eos": True}
        answers[key] = httpx.post(f"{running.url}/v1/completions", json=body, headers=headers(key), timeout=60)

    threads = [threading.Thread(target=ask, args=a) for a in (("a", 40), ("b", 3))]
    for thread, key in zip(threads, "ab", strict=True):
        thread.start()
        end = time.monotonic() + 60
        while not why(running, "job-1", headers=headers(key)).get("parts"):
            assert time.monotonic() < end
            time.sleep(0.005)
    assert len(why(running, "job-1", headers=headers("a"))["parts"]) == 1
    for thread in threads:
        thread.join()
    for key in "ab":
        told = why(running, "job-1", headers=headers(key))
        assert (answers[key].status_code, told["id"], told["state"]) == (200, "cmpl-job-1", "ended")
        assert [(p["state"], p["prompt_tokens"]) for p in told["parts"]] == [("ended", 1)]
    slow, quick = (why(running, "job-1", headers=headers(k))["seconds"] for k in "ab")
    assert slow > quick
    assert why(running, "cmpl-job-1", headers=headers("a"))["seconds"] == slow


def test_a_key_that_asks_often_makes_its_own_requests_forgotten(recent: RecentRequests) -> None:
    recent.add(Record("cmpl-mine", "quiet", "m", 1, 0.0, 0, 0, 0))
    for i in range(MOST_REQUESTS + 50):
        recent.add(Record(f"cmpl-{i}", "hog", "m", 1, 0.0, 0, 0, 0))
    assert recent.find("mine", "quiet") is not None
    assert recent.find("50", "hog") is None
    assert recent.find("51", "hog") is not None
    assert sum(recent.find(str(i), "hog") is not None for i in range(MOST_REQUESTS + 50)) == MOST_REQUESTS - 1
