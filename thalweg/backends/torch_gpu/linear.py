"""Dense linear layers by the vendor's matrix library, through torch."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from thalweg.hal.op import Kernel

TILE = 128
"""Rows multiplied at once by the kernel with rows that do not depend on each other's company."""


def _dense(spec: Mapping[str, Any]) -> str | None:
    return None if spec["weight"].kind == "dense" else f"runs dense weights, not {spec['weight']}"


def _as_it_comes(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The library chooses its algorithm by the number of rows, so a row's bits follow from it."""
    return F.linear(x, weight, bias)


def _in_tiles(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Always TILE rows: one shape, hence one algorithm, and every row is summed in its order, in any batch. Decoding
    is bound by reading the weight, so the rows that fill a tile up cost little there."""
    rows = x.reshape(-1, x.shape[-1])
    n = rows.shape[0]
    if n == 0:
        return x.new_empty(*x.shape[:-1], weight.shape[0])
    padded = F.pad(rows, (0, 0, 0, -n % TILE)) if n % TILE else rows
    out = [F.linear(padded[at : at + TILE], weight, bias) for at in range(0, padded.shape[0], TILE)]
    whole = out[0] if len(out) == 1 else torch.cat(out)
    return whole[:n].view(*x.shape[:-1], weight.shape[0])


SHOWN: Mapping[str, str] = {"sm_90": "nvidia-h200-2026-11-26-72915bbda154"}
"""Architecture -> the file of docs/evidence/device with the run in which `ci/gpu/rows.py` found a row's bits equal in any
number of rows."""
LEAST_COLUMNS = 128
"""Columns of the smallest weight. For one of 64 columns the library has another routine where there is one row."""
WORKSPACE = {"CUBLASLT_WORKSPACE_SIZE": "1", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
"""KiB, and blocks of KiB. Without a workspace the library cannot add the parts of a sum that was split over its length."""


@functools.cache
def _without_workspace() -> None:
    """Make torch multiply by cuBLASLt without splitting sums. The library reads the first two settings at its first product, so
    no other kernel of this process may have multiplied: where rows must keep their bits, no bound kernel does. The user's
    values are replaced."""
    os.environ.update(WORKSPACE)
    torch.backends.cuda.preferred_blas_library("cublaslt")
    for name in ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"):
        try:
            setattr(torch.backends.cuda.matmul, name, (False, False))
        except (TypeError, RuntimeError):  # a torch that knows one flag for both
            setattr(torch.backends.cuda.matmul, name, False)


def _in_one_sum(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A row's terms are added by one program, first to last, in any tile that the library chooses for this many rows."""
    if weight.device.type == "cuda":
        _without_workspace()
    return F.linear(x, weight, bias)


def _not_shown(arch: str, unshown: bool, spec: Mapping[str, Any]) -> str | None:
    if why := _dense(spec):
        return why
    if spec["dtype"] not in ("bfloat16", "float16"):
        return f"runs bfloat16, float16, not {spec['dtype']}"
    if spec["out_features"] < LEAST_COLUMNS or spec["in_features"] % 8:
        sizes = f"{spec['in_features']} x {spec['out_features']}"
        return f"runs {LEAST_COLUMNS} outputs or more and inputs that 8 divides, not {sizes}"
    return None if unshown or arch in SHOWN else f"not shown to keep a row's bits on {arch}: ci/gpu/run does"


def no_split_k(arch: str, unshown: bool = False) -> Kernel:
    """NVIDIA's. unshown: claim on this architecture properties not shown on it, as the test that shows them does."""
    supports = functools.partial(_not_shown, arch, unshown)
    return Kernel("linear", "torch-no-split-k", _in_one_sum, supports=supports, batch_invariant=True)


AS_IT_COMES = Kernel("linear", "torch-variant", _as_it_comes, supports=_dense)
IN_TILES = Kernel("linear", "torch-tiles", _in_tiles, supports=_dense, batch_invariant=True)
