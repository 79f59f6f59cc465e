"""`bench sweep`: grids, what is measured and what is left out, and the points of a plot. Servers here only answer."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from loopback import free_port

from thalweg.bench import front, sweep
from thalweg.cli import main
from thalweg.errors import ConfigError, ThalwegError

SERVER = """
import sys, http.server
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        open(sys.argv[2], "a").write(self.path + "\\n")
        self.send_response(404); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
BENCH = """
import sys, json
words = sys.argv[1:]
out = words[words.index("--output-json") + 1]
rate = float(words[words.index("--request-rate") + 1])
json.dump({"request_throughput": rate * 0.9, "mean_ttft_ms": 5 * rate, "words": words}, open(out, "w"))
"""


def test_a_grid_is_a_list_or_names_from_text_or_a_file(tmp_path: Path):
    assert sweep.grid("--x", None) == [{}]
    assert sweep.grid("--x", '[{"a": 1}, {"a": 2}]') == [{"a": 1}, {"a": 2}]
    (tmp_path / "g.json").write_text('{"small": {"max_num_seqs": 4}}')
    assert sweep.grid("--x", str(tmp_path / "g.json")) == [{"_name": "small", "max_num_seqs": 4}]
    for wrong in ("nowhere.json", "[]", "[1]", '{"a": 1}'):
        with pytest.raises(ConfigError, match="--x"):
            sweep.grid("--x", wrong)
    assert sweep.flags({"_name": "n", "max_num_seqs": 4, "a": True, "b": False, "c": None, "hf_overrides": {"x": 1}}) == [
        "--max-num-seqs", "4", "--a", "--no-b", "--hf-overrides", '{"x": 1}',
    ]  # fmt: skip


@pytest.mark.slow  # a dozen processes
def test_every_pair_is_measured_once_and_what_is_there_is_left_out(tmp_path: Path, capsys):
    port = free_port()
    for name, text in (("server.py", SERVER), ("bench.py", BENCH)):
        (tmp_path / name).write_text(text)
    posts = tmp_path / "posts"
    words = [
        "bench", "sweep", "serve", "--serve-cmd", shlex.join([sys.executable, f"{tmp_path}/server.py", str(port), str(posts)]),
        "--bench-cmd", shlex.join([sys.executable, f"{tmp_path}/bench.py"]), "--url", f"http://127.0.0.1:{port}",
        "--serve-params", '[{"max_num_seqs": 2}, {"max_num_seqs": 4}]', "--link-vars", "max_num_seqs=max_concurrency",
        "--bench-params", '[{"request_rate": 1}, {"request_rate": 2}, {"request_rate": 3, "max_concurrency": 4}]',
        "-o", str(tmp_path), "-e", "one", "--num-runs", "2",
    ]  # fmt: skip
    assert main([*words, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("--request-rate") == 5
    assert not (tmp_path / "one").exists()
    assert main(words) == 0
    files = sorted(p.relative_to(tmp_path / "one").as_posix() for p in (tmp_path / "one").rglob("*.json"))
    assert len(files) == 2 * 5
    assert files[0] == "server-max_num_seqs=2/load-request_rate=1/run=0.json"
    assert posts.read_text().splitlines() == ["/reset_prefix_cache"] * 10
    found = sweep.curves(tmp_path / "one", "request_throughput", "mean_ttft_ms", None)
    assert {name: [p[1] for p in points] for name, points in found.items()} == {
        "max_num_seqs=2": [5, 10], "max_num_seqs=4": [5, 10, 15],
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"'nothing' must be a number .*mean_ttft_ms"):
        sweep.curves(tmp_path / "one", "nothing", "mean_ttft_ms", None)
    (tmp_path / "one" / files[0]).unlink()
    assert main([*words, "--resume"]) == 0
    assert len(posts.read_text().splitlines()) == 10 + 1
    with pytest.raises(ThalwegError, match="ended with"):
        sweep.main(sweep_of([*words[2:-2], "--num-runs", "1", "--bench-cmd", shlex.join([sys.executable, "-c", "1/0"])]))


def sweep_of(words: list[str]):
    import argparse

    parser = argparse.ArgumentParser()
    sweep.add_arguments(parser)
    return parser.parse_args(words)


def test_a_plot_is_drawn_of_a_sweeps_results(tmp_path: Path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install 'thalweg[bench]'")
    for i in (1, 2):
        place = tmp_path / "server-x" / f"load-{i}"
        place.mkdir(parents=True)
        (place / "run=0.json").write_text(json.dumps({"a": i, "b": 2 * i, "server": {}, "load": {"rate": i}}))
    assert main(["bench", "sweep", "plot", str(tmp_path), "--var-x", "a", "--var-y", "b"]) == 0
    assert (tmp_path / "FIGURE.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow  # a server
def test_the_front_door_is_measured(capsys):
    assert main(["bench", "front", "--num-prompts", "60", "--concurrency", "4", "--output-len", "8"]) == 0
    out = capsys.readouterr().out
    assert "a request of one token" in out
    assert "tokens a second" in out
    slow = {"concurrency": 1, "cpu_us_per_request": 2000, "cpu_us_per_token": 5, "requests_per_second_at_most": 500,
            "tokens_per_second_at_most": 2e5}  # fmt: skip
    assert "several servers behind a router" in front.table(slow)
