"""What bench roofline says a step must do, against counting by hand, and that it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from thalweg.bench import roofline
from thalweg.bench.roofline import Ceilings
from thalweg.models import registry
from thalweg.models.sizes import StepWork, step_work
from thalweg.quantization.online import formats
from thalweg.server.cli import main

TINY = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 16, "vocab_size": 100, "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}  # fmt: skip
LAYER = 8 * (8 + 4 + 4) + 8 * 8 + 3 * 8 * 16 + 2 * 8
"""Values of one layer: q, k, v; out; gate, up, down; two norms."""


def test_a_step_reads_every_matrix_once_and_the_keys_before_it() -> None:
    spec = registry.family(TINY)(TINY)
    work = step_work(spec, "bfloat16", formats(None), 3, 1, 10)
    assert work.bytes == (2 * LAYER + 8 + 100 * 8) * 2 + 3 * 2 * (2 * 4 * 2) * 12
    products, attention = 2 * 3 * (2 * LAYER + 8 + 100 * 8), 2 * 4 * 2 * 4 * 3 * 11
    assert work.flops == products + attention


def test_a_prompt_computes_layers_for_every_token_and_the_head_for_the_last() -> None:
    spec = registry.family(TINY)(TINY)
    work = step_work(spec, "bfloat16", formats(None), 1, 5, 0)
    assert work.flops == 2 * (5 * (2 * LAYER + 8) + 800) + 2 * 4 * 2 * 4 * (1 + 2 + 3 + 4 + 5)
    assert step_work(spec, "bfloat16", formats("int8"), 1, 5, 0).bytes < work.bytes


def test_the_tighter_ceiling_bounds() -> None:
    assert Ceilings(10.0, 100.0).bound(StepWork(50, 100)) == 5.0
    assert Ceilings(10.0, 100.0).bound(StepWork(5, 1000)) == 10.0


def test_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(roofline, "READ", (1, 64, 256))
    monkeypatch.setattr(roofline, "RATE", (32, 64, 64))
    out = tmp_path / "r.json"
    words = ["--device", "cpu", "--max-model-len", "64", "--input-len", "20", "--output-len", "4", "--quantization", "int4"]
    assert main(["bench", "roofline", *words, "--num-iters", "1", "--output-json", str(out)]) == 0
    result = json.loads(out.read_text())
    assert set(result["phases"]) == {"prefill", "decode"}
    assert all(p["fraction"] > 0 and p["bound_seconds"] > 0 for p in result["phases"].values())
    assert "GB/s" in capsys.readouterr().out
