"""The commands that bring their own engine, run as users run them on the bundled model."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
pytestmark = pytest.mark.slow


def thalweg(*words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "thalweg", *words]
    done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_generate_prints_text_and_says_which_model():
    runs = [thalweg("generate", "Once", "--max-tokens", "6", "--sampling-seed", "5", "--ignore-eos") for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout != ""
    assert "thalweg-nano" in runs[0].stderr
    assert (
        thalweg("generate", "-", "--max-tokens", "6", "--sampling-seed", "5", "--ignore-eos", typed="Once").stdout
        == runs[0].stdout
    )


def test_chat_answers_every_line():
    said = thalweg("chat", "--max-tokens", "4", "--ignore-eos", "--temperature", "0", typed="hello\n\nagain\n")
    assert "Ctrl-D ends" in said.stderr
    assert said.stdout.count("\n") >= 2


def test_bench_latency_writes_its_results(tmp_path):
    file = tmp_path / "out.json"
    thalweg(
        "bench", "latency", "--input-len", "8", "--output-len", "4", "--batch-size", "2", "--num-iters", "3",
        "--num-iters-warmup", "1", "--output-json", str(file),
    )  # fmt: skip
    result = json.loads(file.read_text())
    assert len(result["latencies"]) == 3
    assert set(result["percentiles"]) == {"10", "25", "50", "75", "90", "99"}
    assert min(result["latencies"]) <= result["avg_latency"] <= max(result["latencies"])


def test_bench_throughput_counts_every_token(tmp_path):
    file = tmp_path / "out.json"
    thalweg(
        "bench", "throughput", "--num-prompts", "5", "--input-len", "10", "--output-len", "4", "--random-prefix-len", "6",
        "--n", "2", "--output-json", str(file),
    )  # fmt: skip
    result = json.loads(file.read_text())
    assert result["num_requests"] == 5
    assert result["total_num_tokens"] == 5 * (16 + 2 * 4)


def test_complete_continues_every_line():
    said = thalweg("complete", "--max-tokens", "4", "--ignore-eos", "--temperature", "0", typed="Once\n\nOnce\n")
    assert said.returncode == 0
    first, second = said.stdout.splitlines()
    assert first == second != ""


def test_a_batch_is_answered_in_order_without_a_port(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    chat = {"messages": [{"role": "user", "content": "What is 2 + 5?"}], "max_tokens": 8, "temperature": 0}
    asked = [
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"prompt": "3 + 4 =", "max_tokens": 4}),
        ("/v1/embeddings", {"input": "x"}),
    ]
    lines = [
        json.dumps({"custom_id": f"r{i}", "method": "POST", "url": asked[i % 3][0], "body": asked[i % 3][1]}) for i in range(9)
    ]
    source.write_text("\n".join([*lines, "{broken"]) + "\n\n")
    said = thalweg("run-batch", "-i", str(source), "-o", str(target), "--max-num-seqs", "2")
    assert said.returncode == 0, said.stderr
    assert "10 requests answered, 4 with an error" in said.stderr
    done = [json.loads(line) for line in target.read_text().splitlines()]
    assert [d["custom_id"] for d in done] == [*(f"r{i}" for i in range(9)), None]
    assert [d["response"]["status_code"] for d in done] == [200, 200, 400] * 3 + [400]
    texts = {d["response"]["body"]["choices"][0]["message"]["content"] for d in done[:9:3]}
    assert len(texts) == 1
    assert texts != {""}
