"""The engine's frames as metrics and as a log line."""

from __future__ import annotations

import logging

import numpy as np
from fake_engine import config

from thalweg.engine.client.process import RankHistory
from thalweg.engine.messages import Outputs, RankFacts, Ready, SequenceFinished, Stats
from thalweg.outputs import CompletionOutput, RequestMetrics, RequestOutput
from thalweg.params import RequestOutputKind, SamplingParams
from thalweg.server.buckets import problems_of, steps_125
from thalweg.server.observe.metrics import EngineMetrics, exposition
from thalweg.server.observe.stats_line import StatsLine


def frame(handles: list[int], time: float, stats: Stats | None = None, ended: tuple[int, ...] = ()) -> Outputs:
    finished = [SequenceFinished(handle=h, reason="stop") for h in ended]
    tokens = np.zeros(len(handles), np.int32)
    return Outputs(np.array(handles, np.int64), tokens, time, finished=finished, stats=stats, step_tokens=len(handles))


def value(metrics: EngineMetrics, name: str, labels: dict[str, str] | None = None) -> float | None:
    return metrics.registry.get_sample_value(name, {"model_name": "m", "engine": "0", **(labels or {})})


def test_gaps_between_tokens_are_counted_per_sequence():
    metrics = EngineMetrics()
    metrics.record(frame([9], 0.0))  # before the engine is known: not counted, not an error
    metrics.bind("m", config())
    for outputs in (frame([1, 2], 1.0), frame([1], 1.03), frame([1, 2], 1.06, ended=(1,)), frame([1], 9.0)):
        metrics.record(outputs)
    name = "thalweg:inter_token_latency_seconds"
    assert value(metrics, f"{name}_count") == 3
    assert abs((value(metrics, f"{name}_sum") or 0) - (0.03 + 0.03 + 0.06)) < 1e-9
    assert value(metrics, f"{name}_bucket", {"le": "0.025"}) == 0
    assert value(metrics, f"{name}_bucket", {"le": "0.05"}) == 2
    assert value(metrics, f"{name}_bucket", {"le": "+Inf"}) == 3
    assert value(metrics, "thalweg:iteration_tokens_total_sum") == 6


def test_tokens_that_come_together_share_the_time_since_the_last():
    metrics = EngineMetrics()
    metrics.bind("m", config())
    for outputs in (frame([1, 2], 1.0), frame([1, 1, 1, 2], 1.06)):
        metrics.record(outputs)
    name = "thalweg:inter_token_latency_seconds"
    assert value(metrics, f"{name}_count") == 4
    assert abs((value(metrics, f"{name}_sum") or 0) - (0.06 + 0.06)) < 1e-9
    assert value(metrics, f"{name}_bucket", {"le": "0.025"}) == 3


def test_snapshots_become_gauges_and_counters():
    metrics = EngineMetrics()
    metrics.bind("m", config())
    metrics.record(frame([], 1.0, Stats(3, 2, 16, 64, 100, 40, 5, 9, 70, 80)))
    for name, expected in {
        "num_requests_running": 3,
        "num_requests_waiting": 2,
        "kv_cache_usage_perc": 0.25,
        "prefix_cache_queries_total": 100,
        "prefix_cache_hits_total": 40,
        "num_preemptions_total": 5,
        "prompt_tokens_total": 70,
        "generation_tokens_total": 80,
    }.items():
        assert value(metrics, f"thalweg:{name}") == expected, name
    stats = Stats(
        3, 2, 16, 64, 100, 40, 5, 9, 70, 80, drafts=4, draft_tokens=11, accepted_tokens=7, accepted_per_position=[4, 3]
    )
    metrics.record(frame([], 2.0, stats))
    name = "thalweg:spec_decode_num"
    assert [value(metrics, f"{name}_{n}_total") for n in ("drafts", "draft_tokens", "accepted_tokens")] == [4, 11, 7]
    per_position = [value(metrics, f"{name}_accepted_tokens_per_pos_total", {"position": str(i)}) for i in range(3)]
    assert per_position == [4, 3, None]
    assert b"thalweg:cache_config_info" in exposition(metrics.registry)[0]


def test_the_longest_of_several_streamed_answers_is_counted():
    """Its last delta tells no lengths."""
    metrics = EngineMetrics()
    metrics.bind("m", config())
    last = RequestOutput(
        "r", None, [1, 2], None, [CompletionOutput(1, "", [], None, None, "stop")], True,
        metrics=RequestMetrics(1, 1, 1, 1, 2, num_generation_tokens=9, max_num_generation_tokens=6),
    )  # fmt: skip
    metrics.record_request(last, SamplingParams(n=2, output_kind=RequestOutputKind.DELTA))
    assert value(metrics, "thalweg:request_max_num_generation_tokens_sum") == 6
    assert value(metrics, "thalweg:request_generation_tokens_sum") == 9


def test_a_step_counts_the_prompt_tokens_it_computed():
    """13 prompt tokens and 10 made, one a step, are 23 in 10 steps."""
    metrics = EngineMetrics()
    metrics.bind("m", config())
    for tokens in (14, *[1] * 9):
        outputs = frame([1], 1.0)
        outputs.step_tokens = tokens
        metrics.record(outputs)
    assert value(metrics, "thalweg:iteration_tokens_total_sum") == 23
    assert value(metrics, "thalweg:iteration_tokens_total_count") == 10


def test_how_often_a_request_gave_way_is_counted():
    metrics = EngineMetrics()
    metrics.bind("m", config())
    for times in (0, 3):
        done = RequestOutput("r", None, [1], None, [CompletionOutput(0, "", [1], None, None, "stop")], True)
        done.metrics = RequestMetrics(1, 1, 1, 1, 2, 1, 1, num_preemptions=times)
        metrics.record_request(done, SamplingParams())
    assert value(metrics, "thalweg:request_num_preemptions_count") == 2
    assert value(metrics, "thalweg:request_num_preemptions_sum") == 3


def test_where_prompt_tokens_came_from_and_why_requests_wait():
    metrics = EngineMetrics()
    metrics.bind("m", config())
    metrics.queued = lambda: 3
    metrics.record(frame([], 1.0, Stats(3, 2, 16, 64, 100, 40, 5, 9, 70, 80, 30)))
    for source, expected in {"local_compute": 40, "local_cache_hit": 30}.items():
        assert value(metrics, "thalweg:prompt_tokens_by_source_total", {"source": source}) == expected
    assert value(metrics, "thalweg:prompt_tokens_cached_total") == 30
    for reason, expected in {"capacity": 5, "deferred": 0}.items():
        assert value(metrics, "thalweg:num_requests_waiting_by_reason", {"reason": reason}) == expected


def test_length_buckets():
    assert steps_125(100) == (1, 2, 5, 10, 20, 50, 100)


def test_the_log_line_shows_rates_since_the_line_before(caplog):
    now = [0.0]
    line = StatsLine(10, clock=lambda: now[0])
    with caplog.at_level(logging.INFO):
        line.record(frame([], 0, Stats(0, 0, 0, 64, 0, 0, 0, 0, 0, 0)))
        now[0] = 5
        line.record(frame([], 0, Stats(1, 0, 0, 64, 0, 0, 0, 0, 50, 50)))
        assert not caplog.messages
        now[0] = 10
        line.record(frame([], 0, Stats(2, 1, 16, 64, 200, 50, 3, 9, 100, 500)))
    (text,) = caplog.messages
    for part in (
        "prompt throughput: 10.0",
        "generation throughput: 50.0",
        "running: 2",
        "waiting: 1",
        "usage: 25.0%",
        "rate: 25.0%",
        "preemptions: 3",
    ):
        assert part in text


def test_buckets_are_replaced_by_family():
    metrics = EngineMetrics({"request_latency": [0.25, 4], "inter_token_latency": [1.0], "request_tokens": [7, 70]})
    metrics.bind("m", config())
    metrics.record(frame([1], 1.0))
    metrics.record(frame([1], 1.5))
    for name, bounds in (
        ("e2e_request_latency_seconds", {"0.25", "4.0", "+Inf"}),
        ("inter_token_latency_seconds", {"1.0", "+Inf"}),
        ("request_prompt_tokens", {"7.0", "70.0", "+Inf"}),
        ("request_params_n", {"1.0", "2.0", "5.0", "10.0", "20.0", "+Inf"}),
    ):
        samples = [s for f in metrics.registry.collect() for s in f.samples if s.name == f"thalweg:{name}_bucket"]
        assert {s.labels["le"] for s in samples} == bounds
    assert value(metrics, "thalweg:inter_token_latency_seconds_bucket", {"le": "1.0"}) == 1


def test_wrong_buckets_are_told_by_family():
    wrong = {
        "latency": [1],
        "request_latency": [],
        "iteration_tokens": [3, 2],
        "request_tokens": [0, 1],
        "request_params_n": ["x"],
    }
    assert [p.split(":")[0].split(" ")[0].strip("'") for p in problems_of(wrong)] == list(wrong)


def test_ranks_and_engines_have_series_of_their_own() -> None:
    metrics = EngineMetrics()
    metrics.bind("m", config())
    history = RankHistory()
    for pids in ((1, 2), (1, 3)):
        ranks = [RankFacts(rank, pid, 100 + pid) for rank, pid in enumerate(pids)]
        history.record(Ready(config(), [], 0.0, ranks))
    metrics.ranks = lambda: {0: history}
    one, two = (Stats(n, 0, 0, 4, 0, 0, 0, 0, 0, 10 * n) for n in (1, 2))
    metrics.engines = lambda: {0: one, 1: two}
    metrics.queued = lambda: 5
    assert [value(metrics, "thalweg:rank_read_bytes", {"rank": r}) for r in "01"] == [101, 103]
    assert [value(metrics, "thalweg:rank_restarts_total", {"rank": r}) for r in "01"] == [0, 1]
    for name, expected in (
        ("num_requests_running", [1, 2]), ("num_requests_waiting", [5, 0]), ("generation_tokens_total", [10, 20]),
    ):  # fmt: skip
        assert [value(metrics, f"thalweg:{name}", {"engine": e}) for e in "01"] == expected
