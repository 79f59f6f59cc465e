"""What `ci/gpu/run` computes from what it sees, and that its checks can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_scripts import FOLDER, script


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


def test_waits_before_between_and_after_operations_are_told_apart() -> None:
    profiles = script("profiles")
    found = profiles.waits(_spans(("a", 30, 40, 0), ("b", 35, 50, 0), ("c", 57, 60, 0)), 10, 65)
    assert {name: round(seconds * 1e9) for name, seconds in found.items()} == {
        "before_seconds": 20, "between_seconds": 7, "after_seconds": 5
    }  # fmt: skip
    assert profiles.waits([], 0, 9)["before_seconds"] is None


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


def test_a_neighbour_that_changes_a_bit_fails_the_schedule_and_says_at_which_length(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = script("checks")
    alone = ([1, 2], [-0.5, -0.25])
    other = ([1, 2], [-0.5, -0.25 - 1e-7])
    monkeypatch.setattr(checks, "run_with_neighbour", lambda llm, tokens, n: other if n == 10 else alone)
    found = checks.check_schedule(None, 8)
    assert (found["holds"], list(found["differ"]), found["lengths"]) == (False, ["10"], [9, 10, 17, 65])
    monkeypatch.setattr(checks, "run_with_neighbour", lambda *_: alone)
    assert checks.check_schedule(None, 8)["holds"]


def test_a_neighbour_arrives_while_the_first_request_decodes() -> None:
    """An engine of which every step gives each open request a token."""
    checks = script("checks")

    class Engine:
        def __init__(self) -> None:
            self.made: dict[str, int] = {}
            self.most: dict[str, int] = {}
            self.arrived: list[tuple[str, int, int]] = []

        def add_request(self, name: str, prompt: Any, params: Any) -> None:
            self.arrived.append((name, len(prompt["prompt_token_ids"]), self.made.get("first", 0)))
            self.made[name], self.most[name] = 0, params.max_tokens

        def has_unfinished_requests(self) -> bool:
            return any(n < self.most[k] for k, n in self.made.items())

        def step(self) -> list[Any]:
            out = []
            for name in [k for k, n in self.made.items() if n < self.most[k]]:
                self.made[name] += 1
                tokens = list(range(self.made[name]))
                made = SimpleNamespace(token_ids=tokens, logprobs=[{t: SimpleNamespace(logprob=-t)} for t in tokens])
                out.append(SimpleNamespace(request_id=name, outputs=[made]))
            return out

    for neighbour, arrived in ((0, [("first", 40, 0)]), (10, [("first", 40, 0), ("neighbour", 10, checks.ARRIVAL)])):
        engine = Engine()
        tokens, logprobs = checks.run_with_neighbour(SimpleNamespace(llm_engine=engine), 8, neighbour)
        assert (len(tokens), len(logprobs)) == (8, 8)
        assert engine.arrived == arrived


def test_checks_capture_few_steps_where_the_platform_can_be_told_which() -> None:
    """An engine that captures every size opens in many seconds on a GPU, and the checks open several."""
    checks = script("checks")
    assert checks.limit_graphs("cuda") == {"additional_config": {"graph_sizes": [1, 4, 16]}}
    assert checks.limit_graphs("reference") == {}


def test_checks_that_an_earlier_report_has_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks, asked = script("checks"), []
    out, have = tmp_path / "out.json", tmp_path / "have.json"

    def check(device: str, requests: int, tokens: int, known: Any) -> Iterator[tuple[str, Any]]:
        asked.append(known)
        yield from ((n, {"holds": n != "crowd"}) for n in ("greedy", "crowd") if n not in known)

    monkeypatch.setattr(checks, "check", check)
    have.write_text('{"figures": {"greedy": {"holds": true}}}')
    monkeypatch.setattr("sys.argv", ["checks.py", "--device=x", f"--have={have}", f"--output-json={out}"])
    assert checks.main() == 1
    assert asked == [("greedy",)]
    assert json.loads(out.read_text())["figures"] == {"greedy": {"holds": True}, "crowd": {"holds": False}}


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


def test_a_proposal_has_the_fastest_tile_for_each_number_of_rows_and_none_that_changes_bits() -> None:
    from dataclasses import asdict

    from thalweg.backends.triton_kernels.tiles import TileSizes, _read, tiles

    sweep, base = script("sweep"), asdict(tiles("sm_90"))
    narrow, wide, large, wrong = (64, 16, 64, 4, 5), (64, 128, 64, 4, 5), (128, 256, 64, 8, 4), (64, 8, 64, 4, 5)
    times = {  # (rows, columns) -> microseconds of narrow, wide, large
        (1, 4096): (10, 11, 30), (1, 32768): (50, 20, 40), (16, 4096): (20, 12, 30), (256, 4096): (90, 60, 40),
    }  # fmt: skip
    records = [
        _product(cols, tile, us, rows)
        for (rows, cols), each in times.items()
        for tile, us in zip((narrow, wide, large), each, strict=True)
    ]
    records += [_product(cols, wrong, 1, rows, same_bits=False) for rows, cols in times]
    tile = {"rows": 32, "keys": 64, "warps": 4, "stages": 2}
    attention = [
        {"kind": "attention", "launch": "exact", "model": "8b", "case": case, "tile": t, "us": us}
        for case, t, us in (("decode", tile, 1), ("decode", {**tile, "rows": 64}, 2), ("prefill", {**tile, "rows": 64}, 1))
    ]
    made = sweep.propose(base, records, attention)
    read = _read(TileSizes, {"arch": "sm_90", **json.loads(json.dumps(made))}, "proposal")  # the format that the library reads
    for rows, (m, n) in {1: wide[:2], 16: wide[:2], 256: large[:2], 4096: large[:2]}.items():
        chosen = read.product.choose("dense", rows, 4096)
        assert (chosen.rows, chosen.cols) == (m, n), rows
    assert made["product"]["codes"] == list(base["product"]["codes"])
    assert made["attention"]["exact"] == {**tile, "rows": 64}  # the other was not timed in every case
    assert made["attention"]["decode"] == base["attention"]["decode"]
    assert sweep.propose(base, [], []) is None
    said = sweep.summarise([{"kind": "base", "tiles": base}, *records, *attention])["lines"]
    assert "triton: a row's bits differ in 4 of 16: m32768 x 1, m4096 x 1, m4096 x 16, m4096 x 256" in said
    assert said[1].startswith("proposed: ")
    assert said[2] == "m4096, us: triton 1/1/1"


def test_prompts_tiles_of_a_sweep_meet_their_keys_as_decodes_do_and_have_a_line() -> None:
    """Others would be timed in vain: a row would have other bits in a prompt than in a decode."""
    from thalweg.backends.triton_kernels.tiles import tiles

    sweep, contestants, exact = script("sweep"), script("contestants"), tiles("sm_90").attention.exact
    made = contestants.attention_tiles(False)["exact_prefill"]
    assert {(t["keys"], t["rows"] // t["warps"]) for t in made} == {(exact.keys, exact.rows // exact.warps)}
    timed = [
        {"kind": "attention", "launch": "exact_prefill", "model": "8b", "case": "prefill", "tile": t, "us": 200.0 - i,
         "same_bits": i != 1}
        for i, t in enumerate(made[:2])
    ]  # fmt: skip
    line = "attention exact_prefill of 8b prefill, us: 64x64 4w 3s 199 other bits; 64x64 4w 2s 200"
    assert sweep.attention_lines(timed) == [line]
    assert sweep.summarise(timed)["lines"] == [line]


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


@pytest.mark.nightly
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
    prompts = [r for r in report["records"] if r.get("launch") == "exact_prefill"]
    assert prompts
    assert all(r["same_bits"] for r in prompts), prompts
    assert all(r["same_bits"] for r in ours)
    assert {r["launch"] for r in report["records"] if r["kind"] == "attention"} == set(sweep.ATTENTION)
    assert (tmp_path / "tiles-interpret.json").exists()


def test_the_sanitizer_says_where_it_cannot_run_and_counts_what_it_found() -> None:
    sanitizer = script("sanitizer")
    assert "not platform rocm" in sanitizer.refused("rocm")
    said = "========= ERROR SUMMARY: 3 errors\n========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)"
    assert sanitizer.errors(said) == 5
    assert sanitizer.errors("ended early") is None


SMI = """
==============NVSMI LOG==============

Driver Version                            : 580.95.05

Attached GPUs                             : 2
GPU 00000000:19:00.0
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Not Active
    ECC Mode
        Current                           : Enabled
    Temperature
        GPU Current Temp                  : 31 C
    GPU Power Readings
        Instantaneous Power Draw          : 75.30 W
        Current Power Limit               : 650.00 W
        Default Power Limit               : 700.00 W
    Clocks
        SM                                : 345 MHz
        Memory                            : 3201 MHz
    Max Clocks
        SM                                : 1980 MHz
        Memory                            : 3201 MHz
GPU 00000000:3B:00.0
    Performance State                     : P8
"""


def test_what_slows_a_board_is_read_of_what_its_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia = script("nvidia")
    assert nvidia.summarise(SMI) == {
        "driver": "580.95.05", "mig": "Disabled", "ecc": "Enabled", "performance_state": "P0", "sm_clock": "345 MHz",
        "memory_clock": "3201 MHz", "most_sm_clock": "1980 MHz", "most_memory_clock": "3201 MHz", "power_limit": "650.00 W",
        "default_power_limit": "700.00 W", "power": "75.30 W", "temperature": "31 C", "clocks_low_for": ["HW Slowdown"],
    }  # fmt: skip
    nothing = nvidia.summarise("")
    assert nothing.pop("clocks_low_for") == []
    assert set(nothing.values()) == {None}
    seen: list[list[str]] = []
    monkeypatch.setattr(nvidia.shutil, "which", lambda name: f"/bin/{name}")
    done = SimpleNamespace(returncode=9, stdout="", stderr="no driver")
    monkeypatch.setattr(nvidia.subprocess, "run", lambda command, **_: seen.append(command) or done)
    assert nvidia.read_board() == {"why": "nvidia-smi -q: no driver"}
    assert seen == [["nvidia-smi", "-q"]]  # which reads, and sets nothing


def test_a_profile_is_the_median_launch_in_plain_units() -> None:
    ncu = script("ncu")
    text = "\n".join([
        "==PROF== Connected", '"ID","Kernel Name","gpu__time_duration.sum","dram__bytes.sum","launch__registers_per_thread"',
        '"","","us","Mbyte","register/thread"', '"0","_product","30.5","117.4","48"', '"1","_product","1,028.0","117.6","48"',
        '"2","_product","29.0","117.5","48"', "==PROF== Disconnected",
    ])  # fmt: skip
    found = ncu.read_table(text)
    assert (found["microseconds"], found["memory_bytes"], found["registers"]) == (30.5, pytest.approx(117.4e6), 48.0)
    assert (found["launches"], found["kernel"], found["l2_bytes"]) == (3, "_product", None)
    assert ncu.read_table("==ERROR== ERR_NVGPUCTRPERM") == {}
    assert "not platform rocm" in ncu.explain_refusal("rocm")


def test_a_machine_that_lets_nobody_read_counters_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ncu, out, seen = script("ncu"), tmp_path / "ncu.json", []
    monkeypatch.setattr(ncu, "find_tool", lambda: "/bin/ncu")
    monkeypatch.setattr("sys.argv", ["ncu.py", "--device=cuda", f"--output-json={out}"])
    done = SimpleNamespace(returncode=1, stdout="==ERROR== ERR_NVGPUCTRPERM - no permission", stderr="")
    monkeypatch.setattr(ncu.subprocess, "run", lambda command, **_: seen.append(command) or done)
    assert ncu.main() == 77
    assert "lets nobody read" in json.loads(out.read_text())["why"]
    (command,) = seen
    assert command[command.index("--clock-control") + 1] == "none"


def test_a_carried_start_is_made_only_where_kernels_were_carried() -> None:
    starts = script("starts")
    assert list(starts.list_caches(Path("x"), None)) == ["start cold", "start warm"]
    with_them = starts.list_caches(Path("x"), "/kernels")
    assert list(with_them) == ["start carried", "start cold", "start warm"]
    assert with_them["start carried"] == "/kernels"
    assert with_them["start cold"] == with_them["start warm"] != "/kernels"


def test_a_start_has_the_seconds_until_each_point_that_its_process_passed(tmp_path: Path) -> None:
    starts, report = script("starts"), script("report")
    (tmp_path / "marks").write_text("weights loaded 12.5\nsteps prepared 14\nweights loaded 15\n")
    until = starts.read_marks(tmp_path / "marks", 10.0)
    assert until == {"weights loaded": 2.5, "steps prepared": 4.0}
    (line,) = report.shape_lines("llama-1b", {"start warm": {"seconds": 5.0, "until": until}}, None, lambda *_: None)
    assert line.endswith("process to first token: warm 5.0 s (weights loaded 2.5, steps prepared 4.0)")


@pytest.mark.slow
def test_an_l2_rate_is_of_bytes_that_were_read() -> None:
    """Every program sums what it read in every pass, and no two programs read a part in one pass."""
    pytest.importorskip("triton")
    code = "\n".join([
        f"import sys; sys.path.insert(0, {str(FOLDER)!r})", "import torch, l2",
        "x = torch.arange(3.0).repeat_interleave(l2.BLOCK)", "print(l2.read_again(x, 6).tolist())",
    ])  # fmt: skip
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert json.loads(done.stdout) == [6 * 4096.0] * 3  # each has been at parts 0, 1 and 2 twice


def test_a_machine_without_an_l2_rate_says_why() -> None:
    import torch

    assert set(script("ceilings").measure_l2(torch.device("cpu"))) == {"l2_why"}


def test_a_table_says_in_few_lines_what_every_part_found() -> None:
    report = script("report")
    kit = {"passed": 3, "failed": 1, "skipped": 2, "failures": ["test_x: differs"]}
    shape = {
        "llama-8b: open": {"seconds": 9.0, "token_bytes": 15e9}, "llama-8b: step 1": {"seconds": 0.0067},
        "llama-8b: step 64": {"error": "OutOfMemoryError: no"}, "llama-8b: crowd": {"holds": False},
        "llama-8b: idle": {"between_fraction": 0.01, "inside_fraction": None, "graphs": 3, "kernels": []},
        "llama-8b: requests 64 x 1024 + 512": {"seconds": 8.0, "output_tokens_per_second": 4096.0},
    }  # fmt: skip
    smoke = {
        "probe": {"name": "H", "board": {**script("nvidia").summarise(SMI)}}, "x": {"holds": False},
        "ceilings": {"bandwidth": 3e12, "read_bytes_per_second": 3e12, "copy_bytes_per_second": 2e12,
                     "l2_bytes_per_second": 5e12, "matrix_flops_per_second": 7e14},
    }  # fmt: skip
    parts = {
        "smoke": {"state": "passed", "seconds": 3.0, "figures": smoke},
        "checks": {"state": "failed", "figures": {"greedy": {"holds": False}, "captured": {"holds": None}}},
        "kit rest 1": {"state": "failed", "figures": kit},
        "measure 8b": {"state": "failed", "figures": shape, "of": {"llama-8b: open": "earlier run"}},
        "starts 1b": {"state": "passed", "figures": {"llama-1b: start cold": {"seconds": 7.5}}},
        "sanitizer": {"state": "not here", "figures": {"why": "there is no tool"}},
        "ncu": {"state": "not here", "figures": {}, "about": {"why": "nobody may"}},
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
        "steps of 1: 6.70 ms; one sequence reads its weights at 75% of bandwidth", "between steps 1.0%, inside them unknown",
        "llama-8b: step 64: error: OutOfMemoryError", "crowd DOES NOT HOLD", "requests 64 x 1024 + 512: 4096 tok/s out",
        "driver 580.95.05, 345 MHz of 1980 MHz, 650.00 W, ECC Enabled, MIG Disabled, clocks low for HW Slowdown",
        "L2 5000 GB/s", "process to first token: cold 7.5 s", "there is no tool", "nobody may", "more lines in summary.json)",
        "of the run earlier run: measure 8b (open)",
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
