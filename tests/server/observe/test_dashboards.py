"""Dashboards, gateways and alerts made for vLLM find their series here: names and labels, read as Prometheus reads them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

TEXT = "/v1/completions"
HISTOGRAM = ("bucket", "sum", "count")
MODEL = {"model_name": "fake"}
GRAFANA = [
    *(f"vllm:e2e_request_latency_seconds_{s}" for s in HISTOGRAM),
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    *(f"vllm:inter_token_latency_seconds_{s}" for s in HISTOGRAM),
    *(f"vllm:time_per_output_token_seconds_{s}" for s in HISTOGRAM),  # its name in older dashboards
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    *(f"vllm:time_to_first_token_seconds_{s}" for s in HISTOGRAM),
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",  # likewise
    "vllm:gpu_prefix_cache_hit_rate",  # read by production-stack's router, like the next two
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_queries_total",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_generation_tokens_bucket",
    "vllm:request_success_total",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_max_num_generation_tokens_sum",
]
"""What the queries of vLLM's Grafana dashboard select (examples/*/prometheus_grafana/grafana.json), each by model_name."""
OURS = json.loads((Path(__file__).parents[3] / "examples" / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
OTHERS = {
    "vllm:engine_sleep_state": {**MODEL, "engine": "0", "sleep_state": "awake"},
    "vllm:num_requests_waiting_by_reason": {**MODEL, "engine": "0", "reason": "capacity"},
    "vllm:request_num_preemptions_bucket": {**MODEL, "engine": "0", "le": "1.0"},
    "vllm:prompt_tokens_by_source_total": {**MODEL, "engine": "0", "source": "local_compute"},
    "vllm:prompt_tokens_cached_total": MODEL,
    "vllm:prefix_cache_queries_total": MODEL,
    "vllm:prefix_cache_hits_total": MODEL,
    "vllm:num_preemptions_total": MODEL,
    "vllm:iteration_tokens_total_bucket": MODEL,
    "vllm:request_params_n_bucket": MODEL,
    "vllm:request_params_max_tokens_bucket": MODEL,
    "vllm:request_inference_time_seconds_bucket": MODEL,
    "vllm:request_time_per_output_token_seconds_bucket": MODEL,
    "vllm:request_prefill_kv_computed_tokens_bucket": MODEL,
    "vllm:cache_config_info": {**MODEL, "kv_cache_size_tokens": "1008", "block_size": "16", "num_gpu_blocks": "64"},
    "process_resident_memory_bytes": {},
    "process_cpu_seconds_total": {},
    "process_open_fds": {},
    "python_gc_collections_total": {},
    "http_requests_total": {"handler": TEXT, "status": "200"},
    "http_request_duration_seconds_bucket": {"handler": TEXT},
    "http_request_duration_highr_seconds_bucket": {},
    "http_request_size_bytes_sum": {"handler": TEXT},
    "http_response_size_bytes_sum": {"handler": TEXT},
}
"""What gateways, autoscalers and alerts select."""


def samples(running):
    r = running.get("/metrics")
    return [s for f in text_string_to_metric_families(r.text) for s in f.samples]


def found(all_samples, name, labels):
    return [s for s in all_samples if s.name == name and labels.items() <= s.labels.items()]


@pytest.fixture(scope="module")
def scraped(server):
    assert server.post(TEXT, {"prompt": "abc", "max_tokens": 4}).status_code == 200
    return samples(server)


@pytest.mark.parametrize("name", GRAFANA)
def test_every_query_of_the_dashboard_finds_its_series(scraped, name):
    assert found(scraped, name, MODEL)


@pytest.mark.parametrize("name", OTHERS)
def test_what_else_is_asked_for_is_there(scraped, name):
    assert found(scraped, name, OTHERS[name])


def test_both_names_of_a_series_show_one_value(scraped):
    ours = {s.name.removeprefix("thalweg:"): s.value for s in scraped if s.name.startswith("thalweg:") and "le" not in s.labels}
    for s in scraped:
        base = s.name.removeprefix("vllm:")
        if base != s.name and base in ours and "le" not in s.labels and len(found(scraped, s.name, {})) == 1:
            assert s.value == ours[base], s.name
    names = {s.name for s in scraped}
    assert {n.replace("thalweg:", "vllm:") for n in names if n.startswith("thalweg:")} <= names


def test_sizes_are_those_on_the_wire(start):
    running = start()
    r = running.post(TEXT, {"prompt": "abc", "max_tokens": 4})
    seen = samples(running)
    for name, size in {"request": len(r.request.content), "response": len(r.content)}.items():
        (one,) = found(seen, f"http_{name}_size_bytes_sum", {"handler": TEXT})
        assert one.value == size


@pytest.mark.parametrize(("prefix", "shown", "hidden"), [("thalweg", "thalweg:", "vllm:"), ("vllm", "vllm:", "thalweg:")])
def test_one_flag_chooses_the_prefix(start, prefix, shown, hidden):
    names = {s.name for s in samples(start(metrics_prefix=prefix))}
    assert f"{shown}num_requests_running" in names
    assert "process_resident_memory_bytes" in names
    assert not [n for n in names if n.startswith(hidden)]


def test_every_reason_to_finish_is_there_before_anything_finished(start):
    seen = found(samples(start()), "vllm:request_success_total", MODEL)
    assert {s.labels["finished_reason"]: s.value for s in seen} == {"stop": 0, "length": 0, "abort": 0, "error": 0}


def test_every_query_of_our_dashboard_finds_its_series_and_labels(scraped):
    series = {s.name: set(s.labels) | {"instance"} for s in scraped}
    queries = [t["expr"] for p in OURS["panels"] for t in p.get("targets", ())]
    queries += [v["definition"] for v in OURS["templating"]["list"] if "definition" in v]
    assert len(queries) > 30
    for query in queries:
        named = re.findall(r"(?:thalweg:|http_|process_)\w+", query)
        assert named, query
        for name in named:
            assert name in series, (name, query)
            labels = set(re.findall(r"(\w+)=~?\"", query)) | set(re.findall(r"by \((\w+)\)", query))
            assert labels <= series[name], (labels - series[name], query)


def test_no_panel_of_our_dashboard_hides_another():
    taken: set[tuple[int, int]] = set()
    for panel in OURS["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({p["id"] for p in OURS["panels"]}) == len(OURS["panels"])


def test_a_sleeping_engine_is_told_and_so_is_who_waits_for_it(start):
    running = start()
    running.engine.sleep_level, running.engine.paused_requests = 2, 3
    seen = samples(running)
    states = {s.labels["sleep_state"]: s.value for s in found(seen, "thalweg:engine_sleep_state", MODEL)}
    assert states == {"awake": 0, "weights_offloaded": 0, "discard_all": 1}
    assert [s.value for s in found(seen, "thalweg:num_requests_waiting", MODEL)] == [3]
    assert [s.value for s in found(seen, "thalweg:num_requests_waiting_by_reason", {"reason": "deferred"})] == [3]
