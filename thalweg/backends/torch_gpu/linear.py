"""Dense linear layers by the vendor's matrix library, through torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from thalweg.hal.op import Kernel

TILE = 128
"""Rows multiplied at once by the kernel whose rows do not depend on each other's company."""


def _dense(spec: Mapping[str, Any]) -> str | None:
    return None if spec["weight"].kind == "dense" else f"runs dense weights, not {spec['weight']}"


def _as_it_comes(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The library chooses its algorithm by the number of rows, so a row's bits follow from it."""
    return F.linear(x, weight, bias)


def _in_tiles(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Always TILE rows: one shape, hence one algorithm, and every row is summed in its order, alone or in a crowd. Decoding
    is bound by reading the weight, so the rows that fill a tile up cost little there."""
    rows = x.reshape(-1, x.shape[-1])
    n = rows.shape[0]
    if n == 0:
        return x.new_empty(*x.shape[:-1], weight.shape[0])
    padded = F.pad(rows, (0, 0, 0, -n % TILE)) if n % TILE else rows
    out = [F.linear(padded[at : at + TILE], weight, bias) for at in range(0, padded.shape[0], TILE)]
    whole = out[0] if len(out) == 1 else torch.cat(out)
    return whole[:n].view(*x.shape[:-1], weight.shape[0])


AS_IT_COMES = Kernel("linear", "torch-variant", _as_it_comes, supports=_dense)
IN_TILES = Kernel("linear", "torch-tiles", _in_tiles, supports=_dense, batch_invariant=True)
