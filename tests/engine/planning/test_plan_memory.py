"""The plan is what a process really comes to hold, within 5 %: the system's own count is the oracle."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from thalweg.config import EngineArgs
from thalweg.engine.planning.memory import plan

RIG = Path(__file__).with_name("memory_rig.py")
MIB = 1 << 20


def shape(
    family: str, hidden: int, inner: int, layers: int, heads: int, kv: int, dim: int, vocab: int, **more: Any
) -> dict[str, Any]:
    return {
        "architectures": [f"{family}ForCausalLM"], "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim,
        "vocab_size": vocab, "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False, **more,
    }  # fmt: skip


SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (shape("Llama", 768, 2048, 6, 12, 12, 64, 16000), {}),
    "llama-tied": (shape("Llama", 768, 2048, 6, 12, 12, 64, 16000, tie_word_embeddings=True), {}),
    "llama-tied-torch": (
        shape("Llama", 768, 2048, 6, 12, 12, 64, 16000, tie_word_embeddings=True),
        {"additional_config": {"isa": "none"}},
    ),
    "llama-bfloat16": (
        shape("Llama", 1024, 2816, 8, 16, 16, 64, 32000),
        {"dtype": "bfloat16", "kv_cache_memory_bytes": 40 * MIB},
    ),
    "deep": (shape("Llama", 512, 1408, 16, 8, 8, 64, 8000), {}),
    "wide-vocabulary": (shape("Llama", 512, 1408, 4, 8, 8, 64, 64000), {"max_num_seqs": 16}),
    "grouped": (shape("Qwen2", 896, 2432, 8, 14, 2, 64, 16000), {"kv_cache_memory_bytes": 24 * MIB}),
    "qwen3": (shape("Qwen3", 768, 2304, 6, 8, 8, 128, 24000, tie_word_embeddings=True), {}),
    "windows": (shape("Mistral", 768, 2048, 6, 12, 12, 64, 16000, sliding_window=256), {}),
    "wide-mlp": (shape("Llama", 640, 5120, 6, 10, 10, 64, 16000), {"max_num_batched_tokens": 1024}),
    "small-steps": (shape("Llama", 1024, 2816, 6, 16, 8, 64, 16000), {"max_num_batched_tokens": 128}),
}


def planned_against_measured(name: str, folder: Path) -> float:
    """Planned over measured total, less 1."""
    config, flags = SHAPES[name]
    (folder / "config.json").write_text(json.dumps(config))
    # A cache for one request of full length: tokens take time, and what they are allotted is the same for any of them.
    fields = {
        "model": str(folder), "device": "cpu", "dtype": "float32", "load_format": "dummy", "threads": 1,
        "max_model_len": 1024, "max_num_seqs": 4, "max_num_batched_tokens": 512, "kv_cache_memory_bytes": 72 * MIB,
        "use_tqdm_on_load": False,
        **flags,
    }  # fmt: skip
    planned = plan(EngineArgs(**fields))
    done = subprocess.run([sys.executable, RIG, json.dumps(fields)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    parts = {"weights": planned.weights, "cache": planned.kv_cache, "workspace": planned.workspace, **measured}
    print(name, {k: f"{v / MIB:.1f}" for k, v in parts.items()}, f"{planned.total / measured['all'] - 1:+.1%}")
    assert planned.fits
    # The cache is held as soon as it is made, or, in pages that the system gives when they are written, only then.
    loaded = (planned.weights, planned.weights + planned.kv_cache)
    assert min(loaded, key=lambda n: abs(n - measured["loaded"])) == pytest.approx(measured["loaded"], rel=0.05)
    return planned.total / measured["all"] - 1


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.nightly) for part in range(1, 6))])
def test_plan_is_what_processes_hold_within_5_percent_in_the_middle_and_12_at_worst(part: int, tmp_path: Path) -> None:
    """The allocator decides a few per cent of a process anew in every run. So no single shape is held to 5 %, and one that is
    over 4 % off has two more runs, of which the middle one counts."""
    errors = []
    for name in list(SHAPES)[part::6]:
        folder = tmp_path / name
        folder.mkdir()
        error = planned_against_measured(name, folder)
        if abs(error) > 0.04:
            error = statistics.median([error, *(planned_against_measured(name, folder) for _ in range(2))])
        errors.append(abs(error))
    assert statistics.median(errors) <= 0.05, errors
    assert max(errors) <= 0.12, errors
