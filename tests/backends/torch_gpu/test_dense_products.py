"""cuBLASLt without split sums: what it computes (by torch, on a processor), what it tells torch, and that it is claimed to keep
a row's bits on no architecture where that was not shown."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from thalweg.backends.torch_gpu import linear
from thalweg.backends.torch_gpu.library import KernelSet, assemble
from thalweg.hal import ops
from thalweg.hal.op import Binder
from thalweg.hal.weights import DENSE

SPEC = {"dtype": "bfloat16", "in_features": 64, "out_features": 128, "weight": DENSE}


def _nothing(arch: str) -> KernelSet:
    return KernelSet()


def _chosen(arch: str, unshown: bool = False, **more: Any) -> tuple[str, str]:
    """The kernel of a dense layer where rows must keep their bits, and why this one is not it."""
    parts = assemble(arch, (), _nothing, unshown=unshown)
    choice = Binder(parts.kernels, batch_invariant=True).bind(ops.linear, **(SPEC | more)).choice
    return choice.kernel, dict(choice.refused).get("torch-no-split-k", "")


def test_it_serves_no_architecture_on_which_its_rows_were_not_shown_to_keep_their_bits() -> None:
    assert set(linear.SHOWN) == {"sm_90"}, "the row test on a device decides: docs/evidence/vendor-kernels.md says how"
    for arch in ("sm_80", "sm_100"):
        kernel, why = _chosen(arch)
        assert kernel == "torch-tiles"
        assert why == f"not shown to keep a row's bits on {arch}: ci/gpu/run does"


def test_it_serves_where_that_was_shown_and_where_a_run_is_to_show_it() -> None:
    assert _chosen("sm_90")[0] == "torch-no-split-k"
    assert _chosen("sm_100", unshown=True)[0] == "torch-no-split-k"
    assert _chosen("sm_90", dtype="float32") == ("torch-tiles", "runs bfloat16, float16, not float32")
    assert "torch-no-split-k" not in [k.name for k in assemble("gfx942", (), _nothing, unshown=True).kernels]


def test_weights_of_few_columns_are_refused_as_one_row_of_them_takes_another_routine() -> None:
    why = "runs 128 outputs or more and inputs that 8 divides, not 64 x 64"
    assert _chosen("sm_90", out_features=64) == ("torch-tiles", why)
    assert _chosen("sm_90", in_features=60)[0] == "torch-tiles"


@pytest.mark.parametrize("shape", [(1, 64), (16, 64), (37, 64), (2, 3, 64), (0, 64)])
def test_the_product_is_the_definition_s(shape: tuple[int, ...]) -> None:
    made = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*s, generator=made) for s in (shape, (48, 64), (48,)))
    torch.testing.assert_close(linear._in_one_sum(x, weight, bias), x @ weight.T + bias)


def test_torch_is_told_to_use_that_library_without_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    class Matmul:
        allow_bf16_reduced_precision_reduction: Any = True
        allow_fp16_reduced_precision_reduction: Any = True

    told: list[str] = []
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", told.append)
    monkeypatch.setattr(torch.backends.cuda, "matmul", Matmul)
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "4096")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    linear._without_workspace.__wrapped__()
    assert told == ["cublaslt"]
    assert (os.environ["CUBLASLT_WORKSPACE_SIZE"], os.environ["CUBLAS_WORKSPACE_CONFIG"]) == ("1", ":16:8")
    assert Matmul.allow_bf16_reduced_precision_reduction == (False, False)
