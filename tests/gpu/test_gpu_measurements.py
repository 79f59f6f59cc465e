"""What `ci/gpu/run` computes from what it sees, and that its checks can fail."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gpu_scripts import script


@pytest.mark.parametrize(
    ("spans", "share"),
    [
        ([(0, 4), (4, 10)], 0.0), ([(0, 4), (6, 10)], 0.2), ([(0, 8), (2, 3), (9, 10)], 0.1), ([(5, 6)], 0.0),
        ([(0, 5), (0, 2), (1, 5)], 0.0),
    ],
)  # fmt: skip
def test_idle_is_the_time_that_no_operation_covers(spans: list[tuple[float, float]], share: float) -> None:
    assert script("profiles").uncovered(spans) == pytest.approx(share)


def test_no_operations_are_no_figure() -> None:
    profiles = script("profiles")
    assert profiles.uncovered([]) is None
    assert profiles.idle([])["between_fraction"] is None
    assert profiles.top([]) == []


def _spans(*each: tuple[str, int, int, int]) -> list[Any]:
    return [script("profiles").Span(*s) for s in each]


def test_gaps_inside_a_graph_are_not_gaps_between_steps() -> None:
    """Two graphs of 40 ns with 10 idle each, a copy after the first, 20 ns of nothing but the copy's 5 between them."""
    profiles = script("profiles")
    graph = [("attend", 0, 10, 7), ("product", 20, 40, 7)]
    spans = _spans(*graph, ("copy", 45, 50, 8), *((n, a + 60, b + 60, 9) for n, a, b, _ in graph))
    found = profiles.idle(spans)
    assert found["graphs"] == 2
    assert found["between_fraction"] == pytest.approx(15 / 100)
    assert found["inside_fraction"] == pytest.approx(20 / 100)
    assert found["graph_seconds"] == pytest.approx(40e-9)
    assert found["gap_seconds"] == pytest.approx(20e-9)


def test_operations_of_unknown_launches_are_each_alone() -> None:
    profiles = script("profiles")
    spans = _spans(("a", 0, 10, 0), ("b", 20, 30, 0))
    assert len(profiles.launches(spans)) == 2
    assert profiles.idle(spans)["between_fraction"] == pytest.approx(1 / 3)
    assert profiles.one_step(spans) == ("every step, none of them a graph", spans)


def test_one_step_is_a_whole_graph_and_its_kernels_are_sorted_by_time() -> None:
    profiles = script("profiles")
    step = [("product", 0, 30, 1), ("norm", 30, 35, 1), ("norm", 35, 45, 1)]
    small = [("copy", 100, 101, 2), ("copy", 101, 102, 2)]  # a graph of less than half a step's operations is none
    more = [(n, a + 200, b + 200, 3) for n, a, b, _ in step]
    of, one = profiles.one_step(_spans(*step, small[0], *more))
    assert (of, len(one)) == ("one graph", 3)
    assert profiles.top(one) == [
        {"kernel": "product", "count": 1, "us": 0.0, "share": round(30 / 45, 4)},
        {"kernel": "norm", "count": 2, "us": 0.0, "share": round(15 / 45, 4)},
    ]
    assert len(profiles.top(_spans(*((str(i), i, i + 1, 0) for i in range(40))))) == profiles.MOST


def test_other_tokens_and_other_bits_fail_a_comparison() -> None:
    compare = script("checks").compare
    want = [([1, 2, 3], [-0.5, -0.25, -1.0]), ([4], [-2.0])]
    assert compare(want, want)["holds"]
    other = [([1, 2, 9], [-0.5, -0.25, -1.0]), ([4], [-2.0])]
    assert compare(other, want)["tokens_differ_from"] == {"0": 2}
    assert not compare(other, want, exact=False)["holds"]
    bits = [([1, 2, 3], [-0.5, -0.25, -1.0000001]), ([4], [-2.0])]
    assert compare(bits, want, exact=False)["holds"]
    assert not compare(bits, want)["holds"]


def test_the_shapes_are_those_of_the_published_models() -> None:
    from thalweg.models import registry, sizes

    measure = script("measure")
    for name, billions in (("llama-1b", 1.236), ("llama-8b", 8.03)):
        config = measure.SHAPES[name]
        assert sizes.stored_values(registry.family(config)(config)) / 1e9 == pytest.approx(billions, rel=2e-3), name


def test_the_matrices_of_a_sweep_are_all_of_the_models() -> None:
    measure, contestants = script("measure"), script("contestants")
    for name, layers in (("1b", 16), ("8b", 32)):
        size = {m.name.split()[1]: m.cols * m.width for m in contestants.matrices(False) if m.name.startswith(name)}
        from thalweg.models import registry, sizes

        config = measure.SHAPES[f"llama-{name}"]
        spec = registry.family(config)(config)
        held = sum(sizes.values(w) for w in sizes.parameters(spec) if w.role == "linear")
        assert layers * sum(size[k] for k in ("qkv", "o", "gate_up", "down")) == held
        assert size["head"] == sizes.head_values(spec)


def _product(cols: int, tile: tuple[int, ...], us: float, rows: int = 1, **more: Any) -> dict[str, Any]:
    named = dict(zip(("rows", "cols", "inner", "warps", "stages"), tile, strict=True))
    return {"kind": "product", "by": "triton", "matrix": f"m{cols}", "cols": cols, "width": 64, "rows": rows, "us": us,
            "same_bits": True, "tile": named} | more  # fmt: skip


def test_a_proposal_has_the_fastest_tiles_that_go_together_and_keep_a_rows_bits() -> None:
    from dataclasses import asdict

    from thalweg.backends.triton_kernels.tiles import Tiles, _read, tiles

    sweep, base = script("sweep"), asdict(tiles("sm_90"))
    narrow, wide, other = (64, 16, 64, 4, 5), (64, 128, 64, 4, 5), (128, 256, 64, 8, 4)
    records = [
        _product(4096, narrow, 10), _product(4096, wide, 20), _product(4096, other, 30),
        _product(32768, narrow, 50), _product(32768, wide, 20), _product(32768, other, 15),
        _product(4096, (64, 8, 64, 4, 5), 1, same_bits=False), _product(32768, (64, 8, 64, 4, 5), 1, same_bits=False),
    ]  # fmt: skip
    tile = {"rows": 32, "keys": 64, "warps": 4, "stages": 2}
    attention = [
        {"kind": "attention", "launch": "exact", "model": "8b", "case": case, "tile": t, "us": us}
        for case, t, us in (("decode", tile, 1), ("decode", {**tile, "rows": 64}, 2), ("prefill", {**tile, "rows": 64}, 1))
    ]
    made = sweep.propose(base, records, attention)
    assert _read(Tiles, {"arch": "sm_90", **made}, "proposal")  # the format that the library reads
    product = {"rows": 64, "cols": 128, "narrow": 16, "inner": 64, "warps": 4, "stages": 5}
    assert made["product"] == {**base["product"], **product}
    assert made["attention"]["exact"] == {**tile, "rows": 64}  # the other was not timed in every case
    assert made["attention"]["decode"] == base["attention"]["decode"]
    assert sweep.propose(base, [], []) is None
    said = sweep.summarise([{"kind": "base", "tiles": base}, *records, *attention])["lines"]
    assert "triton: a row's bits differ in 2 of 8: m32768 x 1, m4096 x 1" in said
    assert said[1].startswith('proposed: {"narrow": 16')
    assert said[2] == "m4096, us: triton 1"


def test_a_sweep_of_which_nothing_works_says_why_and_fails_and_one_tile_that_does_not_fit_is_no_failure() -> None:
    sweep = script("sweep")
    bad = {"kind": "product", "by": "triton", "error": "OutOfResources: shared memory"}
    wrong = {"kind": "attention", "launch": "exact", "us": 3, "wrong_by": 0.5}
    report = sweep.summarise([bad, bad, wrong])
    assert report["nothing"] == report["lines"] == [
        "product by triton: none of 2 worked; the first: OutOfResources: shared memory",
        "attention by ours: none of 1 worked; the first: wrong by 0.5 of the largest",
    ]  # fmt: skip
    assert sweep.summarise([bad, _product(64, (64, 16, 64, 4, 5), 1)])["nothing"] == []


@pytest.mark.slow
def test_a_sweep_runs_here_with_interpreted_kernels(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, file = script("sweep"), tmp_path / "sweep.json"
    words = ["sweep.py", "--device", script("parts").HOSTED, "--quick", "--seconds", "500", f"--output-json={file}"]
    monkeypatch.setattr("sys.argv", words)
    assert sweep.main() == 0
    report = json.loads(file.read_text())
    assert set(report["ended"].values()) == {"done"}
    ours = [r for r in report["records"] if r["kind"] == "product" and r["by"] == "triton"]
    assert ours
    assert all(r["same_bits"] for r in ours)
    assert {r["launch"] for r in report["records"] if r["kind"] == "attention"} == {"exact", "decode", "prefill"}
    assert (tmp_path / "tiles-interpret.json").exists()


def test_the_sanitizer_says_where_it_cannot_run_and_counts_what_it_found() -> None:
    sanitizer = script("sanitizer")
    assert "not platform rocm" in sanitizer.refused("rocm")
    said = "========= ERROR SUMMARY: 3 errors\n========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)"
    assert sanitizer.errors(said) == 5
    assert sanitizer.errors("ended early") is None


def test_a_table_says_in_few_lines_what_every_part_found() -> None:
    report = script("report")
    kit = {"passed": 3, "failed": 1, "skipped": 2, "failures": ["test_x: differs"]}
    shape = {
        "decode": {"tokens_per_second": 150.0, "bandwidth_fraction": 0.7}, "error": "OutOfMemoryError: no",
        "idle": {"between_fraction": 0.01, "inside_fraction": None, "graphs": 3, "kernels": []},
    }  # fmt: skip
    parts = {
        "smoke": {"state": "passed", "seconds": 3.0, "figures": {"steps": {"probe": {"name": "H"}, "x": {"holds": False}}}},
        "checks": {"state": "failed", "figures": {"checks": {"greedy": {"holds": False}, "captured": {"holds": None}}}},
        "kit rest 1": {"state": "failed", "figures": kit},
        "measure 8b": {"state": "failed", "figures": {"shapes": {"l": shape}}},
        "sanitizer": {"state": "not here", "figures": {"why": "there is no tool"}},
        "sweep": {"state": "passed", "figures": {"lines": [f"line {i}" for i in range(60)]}},
        "tests": {"state": "failed", "exit": 2, "log": "tests.log"}, "support": {"state": "not run", "why": "not asked for"},
    }  # fmt: skip
    table = report.table({"parts": parts, "seconds": 7.0, "seconds_before": 8.0})
    rows = table.splitlines()
    assert report.LINES - 3 <= len(rows) <= report.LINES
    assert [row.split("  ")[0] for row in rows[1:] if row[0] not in " ("][: len(parts) - 1] == [
        n for n in parts if n != "support"
    ]
    assert max(map(len, rows)) <= report.WIDTH
    for words in (
        "WRONG: x", "greedy DOES NOT HOLD, captured does not apply", "3 passed, 1 failed, 2 skipped", "test_x: differs",
        "decode 150.0 tok/s = 70.0% of bandwidth", "between steps 1.0%, inside them unknown", "error: OutOfMemoryError",
        "there is no tool", "more lines in summary.json)",
    ):  # fmt: skip
        assert words in table, words
    assert rows[-1] == "7 s in all, 8 s in the runs before"
    assert "more lines" not in report.table({"parts": {"smoke": parts["smoke"]}})
    assert report.table({"parts": {}}).splitlines()[-1] == "0 s in all"
    few = report.table({"parts": {k: p for k, p in parts.items() if k != "sweep"}})
    assert "exit 2; see tests.log" in few
    assert "not asked for: support" in few


def test_two_settings_of_tiles_are_compared_by_the_better_of_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    made, turns = script("tiles"), iter([(True, 2.0), (False, 3.0), (False, 5.0), (True, 1.0)])

    def figures(path: Any, args: Any, row_tiles: bool) -> tuple[dict[str, float], list[list[int]]]:
        setting, seconds = next(turns)
        assert setting == row_tiles
        return {"decode 1": seconds, "prompt 512": 2 * seconds if row_tiles else seconds / 3}, [[1, 2 if row_tiles else 3]]

    monkeypatch.setattr(made, "figures", figures)
    found = made.compared(None, None)
    assert found["ratio"] == {"decode 1": 3.0, "prompt 512": 0.5}
    assert not found["same_tokens"]
    said = "; ".join(script("report").shows("tiles", {"figures": found}))
    assert "slower in prompt 512" in said
    assert "OTHER GREEDY TOKENS" in said
