"""What bench startup makes of the moments each process passed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from thalweg.bench.startup import breakdown
from thalweg.cli import main


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
