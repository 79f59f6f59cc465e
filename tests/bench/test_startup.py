"""What bench startup makes of the moments each process passed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from thalweg.bench.startup import POINTS, breakdown
from thalweg.bench.startup_plan import StartCosts, StartWork, predict_start, read_assumed
from thalweg.cli import main
from thalweg.config import EngineArgs
from thalweg.engine.planning.resolve import configure_platform
from thalweg.errors import ConfigError
from thalweg.hal import discovery
from thalweg.hal.platform import Limits


def test_parts_are_counted_from_the_latest_point_before_and_medians_are_of_runs() -> None:
    runs = [
        {"command line": 0.1, "server imported": 0.4, "engine started": 0.3, "first byte": 1.0 + i} for i in (0.0, 2.0, 1.0)
    ]
    parts = breakdown(runs)
    assert parts == pytest.approx(
        {"command line": 0.1, "server imported": 0.3, "engine started": -0.1, "first byte": 1.6}
    )  # a negative part was reached while an earlier one was still under way


@pytest.mark.slow
def test_a_start_is_measured_to_its_first_byte_with_every_part_on_the_way(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    words = ["--device", "null", "--max-model-len", "256", "--num-iters-cold", "1", "--num-iters-warmup", "0"]
    assert main(["bench", "startup", *words, "--num-iters-warm", "1", "--output-json", str(file)]) == 0
    result = json.loads(file.read_text())
    for kind in ("cold", "warm"):
        (run,) = result["runs"][kind]
        assert 0 < run["command line"] < run["server imported"] < run["first byte"]
        assert run["engine started"] < run["engine built"] < run["first byte"] < run["fourth token"]
        assert result["total_startup_time"][kind] == [run["first byte"]]


COSTS = StartCosts(command=1.0, server=2.0, framework=5.0, read=100.0, pack=400.0, memory=1000.0, tokenizer=10.0, open=0.5)
WORK = StartWork(stored=1000, held=2000, tokenizer=20)


def _reach(work: StartWork = WORK, **costs: float) -> dict[str, float]:
    return {p.point: p.at for p in predict_start(work, replace(COSTS, **costs))}


def test_a_planned_start_waits_for_the_longer_of_what_runs_at_once() -> None:
    """Imports of both processes, reading and packing, the tokenizer and the engine."""
    at = _reach()
    assert at["server imported"] == 3.0
    assert at["engine started"] == 6.5  # the framework is later than the server
    assert _reach(server=9.0)["engine started"] == 10.5
    assert at["weights loaded"] - at["engine started"] == 10.0  # reading; packing has 5 seconds
    assert _reach(read=1000.0)["weights loaded"] - at["engine started"] == 5.0
    assert at["tokenizer loaded"] == 5.0
    assert at["canary answered"] == at["engine built"] + 4.0  # two steps read 2000 bytes each
    assert _reach(tokenizer=0.1)["canary answered"] == 203.0 + 4.0
    assert at["first byte"] == at["canary answered"] + 4.0


@pytest.mark.parametrize(
    "costs", [{}, {"server": 4.0}, {"server": 9.0}, {"tokenizer": 0.1}, {"tokenizer": 0.1, "server": 9.0}, {"framework": 1.0}]
)
@pytest.mark.parametrize("strategy", ["lazy", "prefetch", "eager"])
def test_slack_is_what_a_phase_may_last_longer_without_a_later_first_byte(costs: dict[str, float], strategy: str) -> None:
    """Each phase is made longer by its slack, then by a second more."""
    work = replace(WORK, strategy=strategy)
    field = {"server imported": "server", "framework imported": "framework", "engine started": "open"}
    plan = {p.point: p for p in predict_start(work, replace(COSTS, **costs))}
    base = {**{name: getattr(COSTS, name) for name in field.values()}, **costs}
    for point, name in field.items():
        later = [_reach(work, **{**costs, name: base[name] + plan[point].slack + more})["first byte"] for more in (0.0, 1.0)]
        assert later == pytest.approx([plan["first byte"].at, plan["first byte"].at + 1.0]), point
    seconds = plan["tokenizer loaded"].seconds + plan["tokenizer loaded"].slack
    for more in (0.0, 1.0):
        slower = {**costs, "tokenizer": WORK.tokenizer / (seconds + more)}
        assert _reach(work, **slower)["first byte"] == pytest.approx(plan["first byte"].at + more)


def test_a_planned_start_reads_files_while_it_imports_where_it_is_asked_to() -> None:
    """10 seconds of reading, 5 of packing, from the command line at 1.0; the engine starts at 6.5."""
    reached = {s: _reach(replace(WORK, strategy=s))["weights loaded"] for s in ("lazy", "prefetch", "eager")}
    assert reached == {"lazy": 16.5, "prefetch": 11.5, "eager": 16.0}
    assert _reach(replace(WORK, strategy="prefetch"), pack=200.0)["weights loaded"] == 16.5
    assert _reach(replace(WORK, strategy="prefetch"), read=50.0)["weights loaded"] == 21.0


def test_a_planned_start_counts_kernels_once_and_graphs_twice() -> None:
    """A captured step runs as it is written first."""
    more = replace(WORK, kernels=10, graphs=3)
    costs = {"kernel": 0.25, "step": 2.0}
    assert _reach(more, **costs)["engine built"] - _reach()["engine built"] == 10 * 0.25 + 2 * 3 * 2.0


def test_the_points_of_a_plan_are_those_that_a_start_marks() -> None:
    assert set(_reach()) == set(POINTS) - {"fourth token"}


def test_costs_that_are_given_are_checked() -> None:
    assert read_assumed(["read=2e9", "open=0"]) == {"read": 2e9, "open": 0.0}
    with pytest.raises(ConfigError) as e:
        read_assumed(["speed=1", "read=0", "open=soon", "step=-1", "pack=nan"])
    said = str(e.value)
    assert "'speed' is no cost of a start; there are command, framework" in said
    for word in ("read=0", "open=soon", "step=-1", "pack=nan"):
        assert f"'{word}' is not NAME=NUMBER" in said


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--arch", "sm_90"], "--arch: only with --predict"), (["--assume", "read=1"], "--assume: only with --predict"),
        (["--predict", "--arch", "sm_1"], "--arch: 'sm_1' is not one that can be planned for; there are"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_be_made_is_refused(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "startup", "--device", "null", *words]) != 0
    assert error in capsys.readouterr().err


@pytest.mark.slow
def test_a_plan_is_printed_next_to_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    words = ["--device", "null", "--max-model-len", "256", "--num-iters-cold", "0", "--num-iters-warmup", "0"]
    words += ["--num-iters-warm", "1", "--predict", "--assume", "open=0.125", "--output-json", str(file)]
    assert main(["bench", "startup", *words]) == 0
    result = json.loads(file.read_text())
    assert result["costs"]["open"] == "0.125 (given)"
    assert result["costs"]["command"].endswith("(measured)")
    started = next(p for p in result["predicted"] if p["point"] == "engine started")
    assert started["seconds"] == 0.125
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("first byte")]
    measured = result["runs"]["warm"][0]["first byte"]
    assert any(row[5] == f"{measured * 1e3:.0f}" for row in rows)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_plan_for_an_absent_device_counts_its_kernels_and_graphs(tmp_path: Path) -> None:
    """In a process of its own: Triton's driver is replaced there."""
    file = tmp_path / "out.json"
    words = ["--predict", "--arch", "sm_90", "--max-model-len", "512", "--max-num-seqs", "8", "--output-json", str(file)]
    done = subprocess.run([sys.executable, "-m", "thalweg", "bench", "startup", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    built = next(p for p in json.loads(file.read_text())["predicted"] if p["point"] == "engine built")
    kernels, graphs = map(int, re.findall(r"(\d+) (?:kernels|graphs)", built["why"]))
    limits = Limits(8192, 8, 512, 16)
    assert graphs == sum(s.uniform and s.tokens == s.seqs for s in discovery.load("cuda").buckets(None, limits))  # type: ignore[arg-type]
    assert graphs > 0
    assert kernels > 10
    words += ["--additional-config", '{"prepare": "kernels"}']
    done = subprocess.run([sys.executable, "-m", "thalweg", "bench", "startup", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{kernels} kernels loaded, 0 graphs captured" in done.stdout


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"graph_sizes": [1, 4]}, {1, 4}),
        ({"graph_sizes": [1, 4], "prepare": "kernels"}, set()),
        ({"graph_sizes": [1, 4], "graphs": False}, set()),
    ],
)
def test_graphs_of_a_plan_follow_the_settings_of_the_platform(settings: dict[str, Any], sizes: set[int]) -> None:
    platform = configure_platform(EngineArgs(model="m", additional_config=settings), discovery.load("cuda"))
    made = platform.list_captured(platform.buckets(None, Limits(8192, 4, 512, 16)))  # type: ignore[arg-type]
    assert {s.seqs for s in made} == sizes
