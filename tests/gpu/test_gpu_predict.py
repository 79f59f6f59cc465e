"""`ci/gpu/predict.py`: the count of bytes and products that says how long a step should take."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest
from gpu_scripts import FOLDER, script

from thalweg.backends.triton_kernels.tiles import tiles


def _page(operands: str, rows: int, cols: int) -> tuple[int, int]:
    """The tiles of sm_90 at the time of the page that the model is of: 64 x 32, 64 x 128 for wide weights, 128 x 128 where
    that makes 132 programs, 64 x 16 where the others make fewer than that."""

    def programs(m: int, n: int) -> int:
        return -(-rows // m) * -(-cols // n)

    base = (64, 128 if cols >= 16384 else 32)
    if rows >= 128 and programs(128, 128) >= 132:
        return 128, 128
    return (64, 16) if programs(*base) < 132 else base


@pytest.mark.parametrize(("seqs", "milliseconds"), [(1, 6.4), (16, 7.7), (64, 14.9), (128, 22.2), (256, 43.6)])
def test_a_step_of_llama_8b_on_an_h100_is_that_of_the_page(seqs: int, milliseconds: float) -> None:
    predict, case = script("predict"), script("shapes").Case("llama-8b")
    assert predict.predict_step(case, seqs, 1500, predict.Rates.of(), _page) * 1e3 == pytest.approx(milliseconds, rel=0.02)


@pytest.mark.parametrize(("tokens", "milliseconds"), [(512, 34), (2048, 81), (8192, 325)])
def test_products_of_a_prompt_are_those_of_the_page(tokens: int, milliseconds: float) -> None:
    predict, case = script("predict"), script("shapes").Case("llama-8b")
    found = predict.predict_products(predict.count_case(case), tokens, 1, predict.Rates.of(), _page)
    assert found * 1e3 == pytest.approx(milliseconds, rel=0.03)


def test_weights_and_launches_are_counted_from_the_spec() -> None:
    predict, Case = script("predict"), script("shapes").Case
    cases = (Case("llama-8b"), Case("qwen3-30b-a3b"), Case("llama-8b", 0, "fp8"))
    dense, experts, rounded = map(predict.count_case, cases)
    assert sum(m.bytes for m in dense.matrices) == pytest.approx(15.01e9, rel=1e-3)
    assert (dense.launches, experts.launches) == (330, 682)  # as `ci/gpu/launches.py` counted them
    assert sum(m.bytes for m in rounded.matrices) == pytest.approx(7.51e9, rel=1e-2)
    codes = predict.count_case(Case("llama-8b", 0, "int4"))  # GPUs have no kernel for the variant with rounded inputs
    assert codes.launches == 330
    assert {m.operands for m in codes.matrices} == {"grouped", "codes"}  # the output matrix has 8 bits
    rates, choose = predict.Rates.of(), predict.read_tiles("sm_90")
    forms = (predict.count_case(Case("llama-8b", 0, "int4", scaled=s)) for s in (False, True))
    sums, scaled = (predict.predict_products(made, 2048, 1, rates, choose) for made in forms)
    assert scaled < 0.8 * sums  # larger tiles read inputs from the L2 cache less often
    for case, name in ((Case("llama-8b"), "dense"), (Case("qwen3-30b-a3b"), "experts")):
        later = replace(case, dependent=True)
        steps = [predict.predict_step(c, 1, 208, rates, choose) for c in (case, later)]
        each = predict.LAUNCH_GAP - predict.DEPENDENT_GAP
        layer = predict.LAYER_DEPENDENT[name] - (name == "experts")  # 8 pairs are sorted in one launch
        assert steps[0] - steps[1] == pytest.approx(each * layer * case.all_layers)
    assert predict.count_case(Case("llama-8b", joined=True)).launches == dense.launches - 32
    (up,) = {m for m in experts.matrices if m.experts and m.cols == 1536}
    one, many = (predict.predict_product(up, rows, rates, choose) for rows in (1, 64))
    assert one * rates.weights == pytest.approx(up.bytes * 8 / 128)  # of one token the experts that it chooses
    assert 0.9 * up.bytes < many * rates.weights < up.bytes * 1.01


def test_every_figure_of_a_plan_that_is_a_time_is_predicted_and_finite() -> None:
    predict, plans = script("predict"), script("plans")
    names = [n for p in plans.make_parts("quick", "cuda", FOLDER).values() for n in p.wanted]
    rates, choose = predict.Rates.of(), predict.read_tiles("sm_90")
    found = {n: predict.predict_figure(n, {"seconds": 1.0}, rates, choose) for n in names}
    timed = [n for n in names if n.partition(": ")[2].split(" ")[0] in ("step", "prompt", "requests")]
    assert len(timed) >= 20
    assert all(math.isfinite(found[n]) and found[n] > 0 for n in timed)
    assert all(found[n] is None for n in names if n not in timed)
    assert predict.predict_figure("llama-8b: step 1", {"error": "no"}, rates, choose) is None


def test_ceilings_that_were_measured_replace_those_of_an_h100() -> None:
    predict, case = script("predict"), script("shapes").Case("llama-8b")
    choose = predict.read_tiles("sm_90")
    slow, fast = (predict.predict_step(case, 1, 1500, predict.Rates.of({"bandwidth": b}), choose) for b in (3.0e12, 4.2e12))
    assert slow == predict.predict_step(case, 1, 1500, predict.Rates.of(), choose)
    held = sum(m.bytes for m in predict.count_case(case).matrices)
    assert slow - fast == pytest.approx((held / 0.93 + 1500 * 131072 / 0.75) * (1 / 3.0e12 - 1 / 4.2e12), rel=1e-6)


def test_tiles_are_those_that_serve_and_a_library_s_where_one_does() -> None:
    predict = script("predict")
    for arch, rows in (("sm_80", 1), ("sm_80", 2048), ("sm_90", 64)):
        made = tiles(arch).product.choose("float8", rows, 4096)
        assert predict.read_tiles(arch)("float8", rows, 4096) == (made.rows, made.cols)
    assert predict.read_tiles("sm_90")("float8", 65, 4096) == predict.read_tiles("sm_90")("dense", 1, 4096) == (128, 256)
    made = tiles("sm_80").product.choose("dense", 64, 4096)
    assert predict.read_tiles("sm_80")("dense", 64, 4096) == (made.rows, made.cols)


def test_a_table_has_a_prediction_after_each_time_and_marks_what_is_far_from_it() -> None:
    report = script("report")
    figures = {
        "llama-8b: step 1": {"seconds": 0.0060}, "llama-8b: step 64": {"seconds": 0.0120},
        "llama-8b: prompt 512": {"seconds": 0.0300, "flops": 3e12},
    }  # fmt: skip
    known = {"llama-8b: step 1": 0.0059, "llama-8b: step 64": 0.0090, "llama-8b: prompt 512": None}
    smoke = {"ceilings": {"bandwidth": 3e12, "matrix_flops_per_second": 8e14, "read_bytes_per_second": 3e12,
                          "copy_bytes_per_second": 3e12}}  # fmt: skip
    parts = {"smoke": {"state": "passed", "figures": smoke}, "measure 8b": {"state": "passed", "figures": figures}}
    table = report.table({"parts": parts}, lambda name, value: known[name])
    assert "steps of 1: 6.00 ms (5.90), 64: 12.00 ms (9.00, +33% OFF)" in table
    assert "512: 30.0 ms = 12% of the matrix rate" in table


def test_a_run_prints_what_the_figures_of_its_plan_should_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.argv", ["machine.py", "--plan", "quick", "--predict", "--only", "measure 8b", "measure gpt-oss"])
    assert script("machine").main() == 0
    said = [line.rsplit(None, 2) for line in capsys.readouterr().out.splitlines()]
    assert [name.strip() for name, _, _ in said] == [
        *(f"llama-8b: step {n}" for n in (1, 8, 64, 256)), *(f"llama-8b: prompt {n}" for n in (512, 2048, 8192)),
        "llama-8b: requests 64 x 1024 + 512", *(f"gpt-oss-20b 4/24 layers: {f}" for f in ("step 1", "step 64", "prompt 2048")),
    ]  # fmt: skip
    assert all(float(milliseconds) > 0 and unit == "ms" for _, milliseconds, unit in said)


@pytest.mark.slow
def test_the_command_prints_a_table_without_a_device() -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "predict.py"), "--shape", "llama-8b"], capture_output=True, text=True, check=True
    )
    assert "llama-8b: 15.01 GB of weights, 330 launches a step" in done.stdout
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("prompt")] == ["512", "2048", "8192"]
