"""benchmarks.peers without a peer: what is sent, how drivers are talked to and ended, what the figures and ratios say."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import chart, engines, host, run, table
from benchmarks.peers.__main__ import main
from benchmarks.peers.engines import ENGINES, Limits
from benchmarks.peers.session import Measured, PeerError, Session, launch
from benchmarks.peers.workloads import RESERVED, counted, disturbed, medians, workloads

FAKE = Path(__file__).parent / "fake_driver.py"


@contextmanager
def fake(tmp_path: Path, timeout: float = 30, **settings: Any) -> Iterator[Session]:
    told = {"pid_file": str(tmp_path / "pid"), **settings}
    with launch([sys.executable, str(FAKE)], told, os.environ, tmp_path / "log", timeout) as session:
        yield session


def alive(pid: int) -> bool:
    try:
        return "Z" not in (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


# ---------------------------------------------------------------- requests


def test_every_engine_gets_the_same_prompts_and_every_repeat_others() -> None:
    w = workloads()["streams16"]
    assert w.prompts(1000, 0, 1) == w.prompts(1000, 0, 1)
    assert w.prompts(1000, 0, 1) != w.prompts(1000, 0, 2) != w.prompts(1000, 1, 2)
    (prompts,) = w.prompts(1000, 0, 0)
    assert [len(p) for p in prompts] == [128] * 16
    assert not RESERVED & {t for p in prompts for t in p}
    assert all(0 <= t < 1000 for p in prompts for t in p)


def test_a_shared_prefix_is_shared_by_both_calls_and_new_in_every_repeat() -> None:
    w = workloads()["shared"]
    cold, warm = w.prompts(50_000, 0, 0)
    assert {tuple(p[:1024]) for p in cold + warm} == {tuple(cold[0][:1024])}
    assert len({tuple(p[1024:]) for p in cold + warm}) == 32
    assert {len(p) for p in cold + warm} == {1024 + 32}
    assert w.prompts(50_000, 0, 1)[0][0][:1024] != cold[0][:1024]


def test_no_two_calls_of_a_single_stream_share_a_prefix() -> None:
    (first,), (whole,) = workloads()["single"].prompts(50_000, 0, 0)
    assert first[:16] != whole[:16]


@pytest.mark.parametrize(
    ("name", "seconds", "figures"),
    [
        ("single", {"first": 0.5, "whole": 6.85}, {"ttft_s": 0.5, "decode_tok_s": 127 / 6.35}),
        ("prefill", {"whole": 4.0}, {"prefill_tok_s": 512.0}),
        ("streams32", {"whole": 16.0}, {"streams32_tok_s": 32 * 128 / 16}),
        ("shared", {"cold": 5.0, "warm": 3.0}, {"shared_cold_s": 5.0, "shared_warm_s": 3.0}),
    ],
)
def test_figures_follow_from_seconds(name: str, seconds: dict[str, float], figures: dict[str, float]) -> None:
    w = workloads()[name]
    assert w.figures(w, seconds) == pytest.approx(figures)


def test_medians_are_of_figures_not_of_seconds() -> None:
    samples = [{"a": 1.0, "b": 9.0}, {"a": 3.0, "b": 1.0}, {"a": 2.0, "b": 5.0}]
    assert medians(samples) == {"a": 2.0, "b": 5.0}
    assert medians([]) == {}


def sample(others: float, seconds: float, stolen: float = 0.0) -> dict[str, dict[str, float]]:
    return {"seconds": {"a": seconds, "b": seconds}, "others": {"a": others, "b": 0.0}, "stolen": {"a": 0.0, "b": stolen}}


def test_what_others_did_decides_which_repeats_count_and_not_how_long_they_took() -> None:
    samples = [sample(0.8, 1.0), sample(0.1, 9.0), sample(0.0, 2.0, stolen=0.6), sample(0.2, 5.0)]
    assert [disturbed(s) for s in samples] == pytest.approx([0.4, 0.05, 0.3, 0.1])
    assert counted(samples, 2) == [samples[1], samples[3]]
    assert len(counted(samples, 9)) == 4


# ---------------------------------------------------------------- drivers


def test_a_driver_answers_in_order_with_exact_lengths(tmp_path: Path) -> None:
    with fake(tmp_path) as session:
        assert session.versions == {"fake": "1.0"}
        assert session.flags == {"fast": True}
        m = session.ask([[1, 2], [5, 8]], 4)
        assert m.tokens == [[3, 5, 8, 13], [13, 21, 34, 55]]
        assert session.ask([[90, 10]], 1).tokens == [[3]]
        assert 0 < session.load_seconds <= session.since_start
        assert session.memory()["peak_rss_mib"] > 64  # its child's too


def test_what_an_engine_prints_goes_to_its_log_and_not_into_the_answers(tmp_path: Path) -> None:
    with fake(tmp_path) as session:
        session.ask([[1, 2]], 2)
    assert "words an engine prints" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_seconds_are_those_of_the_engine(tmp_path: Path) -> None:
    with fake(tmp_path, delay=0.3) as session:
        begin = time.monotonic()
        seconds = session.ask([[1, 2]], 1).seconds
        assert 0.29 <= seconds <= time.monotonic() - begin


def test_an_answer_of_another_length_is_a_failure(tmp_path: Path) -> None:
    with fake(tmp_path, short=1) as session, pytest.raises(PeerError, match=r"lengths|\[3\] tokens to 1 requests for 4"):
        session.ask([[1, 2]], 4)


def test_an_engine_that_cannot_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="no such weights"), fake(tmp_path, fails=True):
        pass


@pytest.mark.slow
def test_an_engine_that_hangs_is_ended_and_its_processes_too(tmp_path: Path) -> None:
    with fake(tmp_path, delay=60) as session:
        session._timeout = 1
        with pytest.raises(PeerError, match="longer than 1 s"):
            session.ask([[1, 2]], 1)
    gone_soon(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("tidy", [True, False])
def test_nothing_of_an_engine_is_left_behind(tmp_path: Path, tidy: bool) -> None:
    with fake(tmp_path, tidy=tidy) as session:
        child = int((tmp_path / "pid").read_text())
        assert child in host.tree(session._process.pid)
        assert alive(child)
    gone_soon(child)


def gone_soon(pid: int) -> None:
    until = time.monotonic() + 60
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(pid)


# ---------------------------------------------------------------- the machine


@pytest.mark.slow
def test_processor_time_and_memory_are_those_of_the_tree() -> None:
    work = (
        "import time\nx = b'x' * (128 << 20)\nt = time.process_time()\n"
        "while time.process_time() - t < 0.3: pass\nprint(flush=True)\ninput()"
    )
    child = subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline()  # its memory is taken and its time is spent
        assert 0.29 <= host.cpu_seconds([child.pid]) < 3
        assert 128 << 20 < host.peak_rss([child.pid]) < 256 << 20
        assert 128 << 20 < host.pss([child.pid]) <= host.peak_rss([child.pid])
        assert child.pid in host.tree(os.getpid())
    finally:
        child.communicate(b"\n")
    assert host.cpu_seconds([child.pid]) == host.peak_rss([child.pid]) == 0  # gone


def test_an_engine_is_told_its_cores_and_nothing_the_caller_had_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE", "GGML_X", "PYTHONPATH"):
        monkeypatch.setenv(name, "1")
    limits = Limits((0, 3), 4 << 30, 4096)
    env = engines.environment(ENGINES["vllm"], Path("/nowhere"), limits)
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "0,3"
    assert env["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert not {"OMP_NUM_THREADS", "GGML_X", "PYTHONPATH"} & set(env)
    assert "PYTHONPATH" in engines.environment(ENGINES["thalweg"], Path("/nowhere"), limits)


def test_an_engine_that_would_run_as_another_is_refused() -> None:
    amd, intel = "vendor_id : AuthenticAMD\nflags : avx512f\n", "vendor_id : GenuineIntel\nflags : avx512f\n"
    assert "as plain vllm" in str(engines.refuses("vllm-zen", intel))
    assert "as plain vllm" in str(engines.refuses("vllm-zen", amd.replace("avx512f", "avx2")))
    assert engines.refuses("vllm-zen", amd) is None
    assert all(engines.refuses(n, intel) is None for n in engines.ENGINES if n != "vllm-zen")


def test_llama_cpp_gets_as_many_tokens_of_cache_as_the_pool_holds(tmp_path: Path) -> None:
    (tmp_path / "llamacpp").mkdir()
    (tmp_path / "llamacpp" / "peer.json").write_text('{"packages": {"x": "1"}, "build": "-DY"}')
    config = {"num_hidden_layers": 28, "num_key_value_heads": 8, "head_dim": 128}
    told = engines.settings(ENGINES["llamacpp"], tmp_path, Path("w"), "int8", config, Limits((0, 1), 4 << 30, 4096))
    assert told["kv_tokens"] == (4 << 30) // (2 * 28 * 8 * 128 * 2) // 256 * 256
    assert told["receipt"] == {"x": "1", "build": "-DY"}


def test_a_repeat_that_others_disturbed_is_made_again_but_not_for_ever() -> None:
    class Asked:
        """Others are busy in the first and third repeat of the workload, or always."""

        def __init__(self, busy: float) -> None:
            self.calls, self.busy = 0, busy

        def ask(self, prompts: list[list[int]], new: int) -> Measured:
            self.calls += 1
            others = 1.0 if self.calls in (2, 4) else self.busy
            return Measured(1.0, [[0] * new for _ in prompts], 1.0, others, 0.0)

    prefill = workloads(32)["prefill"]
    plan = run.Plan((prefill,), 2, 0.2, 0, False, 0, 0)
    entry = run.Entry(ENGINES["vllm"], "bf16", (), {}, {}, Path("log"), 100)
    for busy, samples in ((0.0, 4), (0.5, 2 * run.ATTEMPTS)):
        out: dict[str, Any] = {"samples": {}, "first_tokens": {}}
        session: Any = Asked(busy)
        run._loaded(session, entry, plan, out)
        assert len(out["samples"]["prefill"]) == samples == session.calls - 1  # the first call warms up


# ---------------------------------------------------------------- a run


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a whole run with two engines that are the fake one, the second slower, and a third that fails."""
    folder = tmp_path_factory.mktemp("run")
    limits = {"load_average": 0.5, "read_gb_per_s": {"bf16": 10.0}, "gemm_gop_per_s": {"bf16": 100.0}}
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"vocab_size": 90}))
    wrong = {"thalweg": {"step": 0.01}, "vllm": {"delay": 0.05, "step": 0.03}, "transformers": {"fails": True}}

    def told(engine: engines.Engine, *rest: Any) -> dict[str, Any]:
        return {"model": str(model), "pid_file": str(folder / "pid"), **wrong[engine.name]}

    for name in wrong:
        (folder / name).mkdir()
        (folder / name / "peer.json").write_text("{}")
    words = ["--engines", ",".join(wrong), "--scale", "32", "--envs", str(folder), "--model", str(model), "--quiet", "9"]
    words += ["--weights", "bf16,int8", "--repeats", "3", "--output-json", str(folder / "r.json")]
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run.conditions, "measure", lambda threads, forms: limits)
        patch.setattr(run.engines, "settings", told)
        patch.setattr(run.engines, "python", lambda envs, name: Path(sys.executable))
        patch.setattr(run.engines, "DRIVERS", FAKE.parent)
        patch.setattr(run, "ENGINES", {n: engines.Engine(n, FAKE.name, {"bf16": "checkpoint"}) for n in wrong})
        status = main(["run", *words])
    assert signal.getsignal(signal.SIGTERM) is before
    assert status == 1  # one failed
    return folder / "r.json"


@pytest.fixture
def report(reported: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(reported.read_text())
    return result


@pytest.mark.slow
def test_a_run_measures_every_workload_and_goes_on_after_a_failure(report: dict[str, Any]) -> None:
    assert [(r["engine"], r["weights"]) for r in report["runs"]] == [(n, "bf16") for n in ("thalweg", "vllm", "transformers")]
    assert len(report["conditions"]) == 4
    ours, peer, failed = report["runs"]
    assert set(ours["figures"]) == {key for key, _, _ in table.COLUMNS}
    assert len(ours["starts"]) == 3
    assert all(len(samples) == 3 for samples in ours["samples"].values())
    rates = [3 / (s["seconds"]["whole"] - s["seconds"]["first"]) for s in ours["samples"]["single"]]
    assert ours["figures"]["decode_tok_s"] == pytest.approx(statistics.median(rates), rel=0.01)
    assert peer["figures"]["prefill_tok_s"] < ours["figures"]["prefill_tok_s"]
    assert "no such weights" in failed["error"]
    assert "figures" not in failed


@pytest.mark.slow
def test_the_table_has_figures_ratios_and_conditions(
    report: dict[str, Any], reported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["table", str(reported)]) == 0
    text = capsys.readouterr().out
    assert "failed: ValueError: no such weights" in text
    assert "Lengths divided by 32: figures not to be quoted." in text
    assert "bf16 10.0, 10.0" in text
    (ratio,) = table.ratios(report)
    assert ratio["cells"]["prefill_tok_s"] > 1
    assert ratio["cells"]["shared_cold_s"] > 1
    same, of = ratio["tokens"]
    assert same == of == 3 * (2 + 1 + 16 + 32 + 32 + 24)  # the same engine twice


@pytest.mark.nightly
def test_thalweg_and_transformers_side_by_side_give_the_same_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real engines on a tiny model; transformers' environment is this one, and the machine's limits are measured once."""
    pytest.importorskip("transformers")
    import torch
    import zoo

    limits = run.conditions.measure(len(os.sched_getaffinity(0)), ["bf16"])
    assert limits["read_gb_per_s"]["bf16"] > 0 < limits["gemm_gop_per_s"]["bf16"]
    monkeypatch.setattr(run.conditions, "measure", lambda threads, forms: limits)
    python = tmp_path / "transformers" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (tmp_path / "transformers" / "peer.json").write_text("{}")
    model = zoo.make_checkpoint("qwen3", tmp_path, dtype=torch.bfloat16)
    words = ["--engines", "thalweg,transformers", "--model", str(model), "--max-model-len", "256", "--scale", "32"]
    words += ["--repeats", "1", "--kv-gib", "1", "--quiet", "9"]
    out = tmp_path / "r.json"
    assert main(["run", "--envs", str(tmp_path), *words, "--output-json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert [set(r["figures"]) for r in report["runs"]] == [{key for key, _, _ in table.COLUMNS}] * 2
    (ratio,) = table.ratios(report)
    same, of = ratio["tokens"]
    assert same >= 0.9 * of
    assert f"{same} of {of}" in capsys.readouterr().out


# ---------------------------------------------------------------- ratios


def made(engine: str, weights: str = "bf16", tokens: tuple[int, ...] = (1, 2, 3), **figures: float) -> dict[str, Any]:
    return {"engine": engine, "weights": weights, "files": "x", "figures": figures, "first_tokens": {"single.first": [*tokens]}}


def test_above_one_means_thalweg_is_ahead_for_rates_times_and_memory() -> None:
    ours = made("thalweg", decode_tok_s=30.0, ttft_s=0.5, peak_rss_mib=2000.0)
    peer = made("vllm", tokens=(1, 2, 4), decode_tok_s=20.0, ttft_s=1.0, peak_rss_mib=8000.0, prefill_tok_s=1.0)
    (r,) = table.ratios({"runs": [peer, ours]})
    assert r["cells"] == {"decode_tok_s": 1.5, "ttft_s": 2.0, "peak_rss_mib": 4.0}
    assert r["tokens"] == (2, 3)


def test_only_weights_of_one_width_are_compared() -> None:
    runs = [made("thalweg", "int8", decode_tok_s=1.0), made("vllm", "bf16", decode_tok_s=1.0)]
    assert table.ratios({"runs": runs}) == []


def test_a_cache_in_8_bits_is_an_engine_of_its_own() -> None:
    limits = Limits((0,), 1 << 30, 4096)
    as_it_is, in_8_bits = (
        engines.settings(ENGINES[n], Path("/nowhere"), Path("/w"), "int8", {}, limits) for n in ("thalweg", "thalweg-kv8")
    )
    assert in_8_bits == as_it_is | {"kv_cache_dtype": "int8_per_token_head"}
    runs = [made(n, "int8", decode_tok_s=x) for n, x in (("thalweg", 1.0), ("thalweg-kv8", 3.0), ("openvino", 2.0))]
    got = {(r["ours"], r["peer"]): r["cells"]["decode_tok_s"] for r in table.ratios({"runs": runs})}
    assert got == {("thalweg", "openvino"): 0.5, ("thalweg-kv8", "openvino"): 1.5}


def test_files_of_llamacpp_are_not_rounded_again() -> None:
    limits = Limits((0,), 1 << 30, 4096)

    def told(name: str, form: str) -> object:
        return engines.settings(ENGINES[name], Path("/nowhere"), Path("/w"), form, {}, limits).get("quantization")

    assert [told("thalweg", f) for f in ("bf16", "int4", "fp8")] == [None, "int4", "fp8"]
    assert [told("thalweg-gguf", f) for f in ENGINES["thalweg-gguf"].weights] == [None] * 3
    assert ENGINES["thalweg-gguf"].weights == ENGINES["llamacpp"].weights


# ---------------------------------------------------------------- chart


def dated(day: str, *runs: dict[str, Any], shape: str = "x") -> dict[str, Any]:
    machine = {"processor": "P"}
    return {"date": day, "machine": machine, "cores": [0], "shape": shape, "layers": None, "scale": 1, "runs": [*runs]}


def test_the_chart_takes_the_latest_report_and_the_lowest_of_memory() -> None:
    peer = made("vllm", decode_tok_s=10.0, peak_rss_mib=100.0)
    older = dated("2026-01-01", made("thalweg", decode_tok_s=40.0, peak_rss_mib=200.0), peer)
    newer = dated("2026-01-02", made("thalweg", decode_tok_s=20.0, peak_rss_mib=50.0), peer)
    for order in ([older, newer], [newer, older]):
        (panel,) = chart.panels(order)
        assert panel == ("vllm", "bf16", {"decode_tok_s": 2.0, "peak_rss_mib": 0.5})


def test_a_chart_is_of_one_machine_and_one_shape() -> None:
    with pytest.raises(ValueError, match="one shape"):
        chart.svg([dated("2026-01-01"), dated("2026-01-02", shape="y")])


CHARTS = {"peers": "*peers*", "peers-zen1": "*-zen1-[!q]*", "peers-zen4": "*-zen4-[!q]*", "peers-zen5": "*-zen5-[!q]*"}
"""Chart -> its reports: a machine each, and one shape."""


@pytest.mark.parametrize("name", CHARTS)
def test_the_charts_that_are_committed_are_what_is_drawn(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).parents[2]
    reports = sorted((root / "benchmarks" / "results").glob(f"{CHARTS[name]}.json"))
    assert main(["chart", *map(str, reports)]) == 0
    assert capsys.readouterr().out == (root / "docs" / "images" / f"{name}.svg").read_text(), (
        f"python -m benchmarks.peers chart benchmarks/results/{CHARTS[name]}.json > docs/images/{name}.svg"
    )


# ---------------------------------------------------------------- flags, and ending


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--engines", "vllm"], "install vllm"),
        (["--engines", "other"], "'other' is none of thalweg, thalweg-kv8, thalweg-gguf, thalweg-kept, thalweg-dense, vllm"),
        (["--workloads", "single,double"], "'double' is none of"),
        (["--repeats", "0"], "--repeats: 0 must be at least 1"),
        (["--output-json", "/no/such/folder/r.json"], "no directory"),
    ],
)
def test_flags_that_make_no_sense_are_refused_first(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        main(["run", "--envs", str(tmp_path), *words])
    assert end.value.code == 2
    assert says in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_a_run_that_is_terminated_ends_its_engine(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, time; from pathlib import Path\n"
        "from benchmarks.peers import __main__ as m\n"
        "from benchmarks.peers.session import launch\n"
        f"told = {{'pid_file': {str(tmp_path / 'pid')!r}, 'delay': 60}}\n"
        "def command(a):\n"
        f"    with launch([sys.executable, {str(FAKE)!r}], told, os.environ, Path({str(tmp_path / 'log')!r}), 90) as s:\n"
        "        print('up', flush=True); s.ask([[1, 2]], 1)\n"
        "m._table = command\n"
        "m.main(['table', 'x'])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    gone_soon(int((tmp_path / "pid").read_text()))
