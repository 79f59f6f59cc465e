"""What a process does between being made and being told what to serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from thalweg.backends.cpu import CpuPlatform
from thalweg.config import EngineArgs
from thalweg.engine.planning.memory import plan
from thalweg.engine.worker import ahead
from thalweg.engine.worker.stages.open import prepare, start_ahead
from thalweg.hal import discovery

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4000, "hidden_act": "silu",
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
}  # fmt: skip
LAYER = (512 * (512 + 128 + 128) + 512 * 512 + 3 * 512 * 1024 + 2 * 512) * 2
STORED = 3 * LAYER + 512 * 2 + 2 * 4000 * 512 * 2


class Recording(CpuPlatform):
    """Writes down what it is told."""

    share = 1.0

    def __init__(self, told: list[Any]) -> None:
        self.told = told

    def dense_share(self, dtype: str) -> float:
        """Not this machine's."""
        return self.share

    def begin(self) -> None:
        self.told.append("begin")

    def expect(self, weights: int) -> None:
        self.told.append((weights, self.options.threads))

    def preload(self) -> None:
        self.told.append("preload")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(discovery, "load", lambda name: Recording(found))
    return found


def args(folder: Path, **more: Any) -> EngineArgs:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return EngineArgs(model=str(folder), device="cpu", **{"dtype": "bfloat16", "threads": 3, **more})


def test_the_platform_is_told_what_will_be_loaded_before_it_imports(told: list[Any], tmp_path: Path) -> None:
    ahead.begin("cpu")
    prepare("cpu", args(tmp_path))
    assert told == ["begin", (STORED, 3), "preload"]


def test_no_more_is_expected_than_kernels_hold_of_matrices(
    told: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recording, "share", 0.5)
    prepare("cpu", args(tmp_path))
    norms, embedding = (3 * 2 + 1) * 512 * 2, 4000 * 512 * 2
    assert told[0] == (norms + embedding + (STORED - norms - embedding) // 2, 3)


def test_rounded_weights_are_expected_as_they_will_lie(told: list[Any], tmp_path: Path) -> None:
    prepare("cpu", args(tmp_path, quantization="int8", max_model_len=64))
    (size, _), _ = told
    assert size == pytest.approx(plan(args(tmp_path, quantization="int8", max_model_len=64)).weights, rel=0.01)
    assert size < 0.7 * STORED


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "org/not-here"},
        {"hf_overrides": {"architectures": ["Nobody"]}},
        {"kv_cache_memory_bytes": 1},
        {"model": "x" * 4000},
    ],
)
def test_of_what_cannot_be_served_nothing_is_expected_and_nothing_said(
    told: list[Any], tmp_path: Path, wrong: dict[str, Any]
) -> None:
    given = args(tmp_path)
    prepare("cpu", EngineArgs(**{"model": given.model, "device": "cpu", "dtype": "bfloat16", **wrong}))
    assert told == ["preload"]


def test_who_stands_by_expects_nothing(told: list[Any]) -> None:
    prepare("cpu")
    assert told == ["preload"]


def test_a_process_that_builds_once_takes_back_what_it_expected_where_that_fails(told: list[Any], tmp_path: Path) -> None:
    with start_ahead(args(tmp_path)):
        assert told == ["begin", (STORED, 3)]
    assert len(told) == 2
    with pytest.raises(KeyError), start_ahead(args(tmp_path)):
        raise KeyError
    assert told[2:] == ["begin", (STORED, 3), (0, 0)]
