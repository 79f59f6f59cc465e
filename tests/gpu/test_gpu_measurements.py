"""What `ci/gpu/run` computes from what it sees, and that its checks can fail."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def _script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"ci_gpu_{name}", ROOT / "ci" / "gpu" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("spans", "share"),
    [
        ([(0, 4), (4, 10)], 0.0), ([(0, 4), (6, 10)], 0.2), ([(0, 8), (2, 3), (9, 10)], 0.1), ([(5, 6)], 0.0),
        ([(0, 5), (0, 2), (1, 5)], 0.0),
    ],
)  # fmt: skip
def test_idle_is_the_time_that_no_kernel_covers(spans: list[tuple[float, float]], share: float) -> None:
    assert _script("measure").uncovered(spans) == pytest.approx(share)


def test_no_kernels_are_no_figure() -> None:
    assert _script("measure").uncovered([]) is None


def test_other_tokens_and_other_bits_fail_a_comparison() -> None:
    compare = _script("checks").compare
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

    measure = _script("measure")
    for name, billions in (("llama-1b", 1.236), ("llama-8b", 8.03)):
        config = measure.SHAPES[name]
        assert sizes.stored_values(registry.family(config)(config)) / 1e9 == pytest.approx(billions, rel=2e-3), name
