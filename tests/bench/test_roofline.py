"""What bench roofline says a step must do, against counting by hand, and that it runs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from thalweg.bench import by_op, roofline
from thalweg.bench.roofline import Ceilings
from thalweg.cli import main
from thalweg.hal.device import Memory
from thalweg.hal.testing.measure import median_seconds
from thalweg.hal.weights import DENSE
from thalweg.models import registry
from thalweg.models.sizes import StepWork, step_work
from thalweg.quantization.online import formats

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


def test_a_prompt_computes_for_its_last_token_alone_the_head_and_what_follows_the_last_keys() -> None:
    spec = registry.family(TINY)(TINY)
    work = step_work(spec, "bfloat16", formats(None), 1, 5, 0)
    late = 8 * 8 + 3 * 8 * 16  # of the last layer: out; gate, up, down
    assert work.flops == 2 * (5 * (2 * LAYER + 8 - late) + late + 800) + 4 * 2 * 4 * ((1 + 2 + 3 + 4 + 5) + 5)
    assert step_work(spec, "bfloat16", formats("int8"), 1, 5, 0).bytes < work.bytes


def test_the_tighter_ceiling_bounds() -> None:
    assert Ceilings(10.0, 100.0).bound(StepWork(50, 100)) == 5.0
    assert Ceilings(10.0, 100.0).bound(StepWork(5, 1000)) == 10.0


def test_instructions_bound_where_the_device_knows_them_and_products_where_it_does_not() -> None:
    known = Ceilings(10.0, 100.0, 200.0)
    assert known.bound(StepWork(5, 1000)) == 5.0
    assert known.practical.bound(StepWork(5, 1000)) == 10.0
    assert Ceilings(10.0, 100.0, 90.0).bound(StepWork(5, 1000)) == 10.0  # a peak that was disturbed is none


@pytest.mark.parametrize(
    ("method", "kinds"),
    [(None, ["bfloat16"]), ("int8", ["int8"]), ("w4a8", ["int4"]), ("w4a16", ["bfloat16", "int4"])],
)
def test_the_peak_is_of_what_the_format_may_multiply(method: str | None, kinds: list[str]) -> None:
    assert roofline._product_dtypes("bfloat16", formats(method).layers) == kinds


@pytest.mark.parametrize("shape", [roofline.READ, roofline.RATE], ids=["read", "rate"])
@pytest.mark.parametrize("free", [80 << 30, 1 << 30])
def test_matrices_grow_with_the_device_as_far_as_its_memory_goes(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], free: int
) -> None:
    """A device of 3 TB/s and 800 Tflop/s, that takes 50 us to launch anything."""
    met = []

    def seconds(device: object, dtype: str, form: object, rows: int, fan_in: int, out: int) -> float:
        met.append((rows, fan_in, out))
        return 50e-6 + max(2 * fan_in * out / 3e12, 2 * rows * fan_in * out / 800e12)

    monkeypatch.setattr(roofline, "_seconds", seconds)
    device = SimpleNamespace(memory=lambda: Memory(80 << 30, free))
    found = roofline._fastest(device, "bfloat16", DENSE, shape)
    assert met[0] == shape
    assert max((4 * fan_in * out for _, fan_in, out in met[1:]), default=0) <= free // 2
    if free == 80 << 30:
        assert found > 0.95 * (3e12 if shape == roofline.READ else 800e12)


@pytest.mark.parametrize("pads", [True, False])
def test_what_is_measured_is_part_of_a_compiled_step(pads: bool) -> None:
    """A compiler leaves out what nothing depends on: a product of which nothing is returned took no time there."""
    results = []

    def compile(step: Any, params: Any, *_: object) -> Any:
        def run(batch: Any) -> Any:
            results.append(step(params, {}, batch.map(torch.as_tensor))[1].tokens)
            return SimpleNamespace(result=lambda: None)

        return run

    device = SimpleNamespace(pads=pads, compile=compile, synchronize=lambda: None)
    for given in (torch.zeros(2, 3), torch.ones(2, 3)):
        median_seconds(device, lambda a: a * 5, [given], 1)
    before, after = results[0], results[-1]
    assert (after - before == (5 if pads else 0)).all()


@pytest.mark.slow
def test_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(roofline, "READ", (1, 64, 256))
    monkeypatch.setattr(roofline, "RATE", (32, 64, 64))
    out = tmp_path / "r.json"
    words = ["--device", "cpu", "--max-model-len", "64", "--input-len", "20", "--output-len", "4", "--quantization", "int4"]
    assert main(["bench", "roofline", *words, "--num-iters", "1", "--output-json", str(out)]) == 0
    result = json.loads(out.read_text())
    assert set(result["phases"]) == {"prefill", "decode"}
    for p in result["phases"].values():  # a time is a difference of two, so on a busy machine it may be below 0
        assert p["bound_seconds"] > 0
        assert p["fraction"] == pytest.approx(p["bound_seconds"] / p["seconds"])
        assert abs(p["practical_fraction"]) >= abs(p["fraction"])
    said = capsys.readouterr().out
    assert "GB/s" in said
    known = result["peak_operations_per_second"]["before"] is not None
    assert ("of the peak" if known else "products are the ceiling") in said
    if not known:  # no compiled kernels
        assert result["by_op"] is None
        return
    prompt, step = (result["by_op"][phase] for phase in ("prefill", "decode"))
    linear = {name for name in step if name.startswith("linear ")}
    assert linear == {name for name in prompt if name.startswith("linear ")}
    assert step["attend"]["calls"] == prompt["attend"]["calls"] > 0
    assert by_op.REST in said
