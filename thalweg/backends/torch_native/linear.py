"""Linear layers: oneDNN with the weight reordered once, at load, into the blocks its product reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from thalweg.hal import ops
from thalweg.hal.op import Kernel, Pack
from thalweg.hal.weights import QTensor

LONE = 1024
"""Inputs up to which a row has the same bits by itself and in company. Seen equal from 16 to 1,024, different from 1,536 on."""

TILE, STEP = 256, 64
"""Rows multiplied at once, and the step to which a tile of more than STEP rows is padded. oneDNN keeps the scratch memory of
every row count it has met (rows x outputs in float32, up to 1,024 of them). Row counts must therefore be few, and none large.
Otherwise prompts of varying length fill the memory."""


def _supports(spec: Mapping[str, Any]) -> str | None:
    if spec["weight"].kind != "dense":
        return f"runs dense weights, not {spec['weight']}"
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this torch is built without oneDNN"
    if spec["dtype"] == "bfloat16":
        return None if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "oneDNN has no bfloat16 on this processor"
    return None if spec["dtype"] == "float32" else f"runs bfloat16 and float32, not {spec['dtype']}"


def _pack(w: QTensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(w.data["weight"].detach().contiguous())
    return packed


def _run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A lone row of more than LONE inputs is doubled. oneDNN gives a row the same bits whatever rows come with it,
    except that a long row on its own may be summed in another order. Decoding is bound by reading the weight, so the
    second row is nearly free."""
    rows = x.reshape(-1, x.shape[-1])
    n = rows.shape[0]
    if n == 0:
        return x.new_empty(*x.shape[:-1], weight.shape[0])
    if n == 1 and rows.shape[1] > LONE:
        rows = rows.expand(2, -1)
    out = _product(rows, weight, bias)
    return out[:n].view(*x.shape[:-1], out.shape[-1])


def _run_as_it_comes(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A lone row is summed in another order."""
    out = _product(x.reshape(-1, x.shape[-1]), weight, bias)
    return out.view(*x.shape[:-1], out.shape[-1])


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """rows [n, inputs] -> [n, outputs], in tiles."""
    n = rows.shape[0]
    if n <= STEP:
        return _multiply(rows, weight, bias)
    out = rows.new_empty(n, weight.shape[0])
    for at in range(0, n, TILE):
        tile = rows[at : at + TILE]
        m = tile.shape[0]
        out[at : at + m] = _multiply(F.pad(tile, (0, 0, 0, -m % STEP) if m > STEP else (0, 0)), weight, bias)[:m]
    return out


def _multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(rows.contiguous(), weight, bias, "none", [], "")
    return out


def _dense(spec: Mapping[str, Any]) -> str | None:
    return None if spec["weight"].kind == "dense" else f"runs dense weights, not {spec['weight']}"


LINEAR = (
    Kernel("linear", "onednn-variant", _run_as_it_comes, supports=_supports, pack=Pack(_pack)),
    Kernel("linear", "onednn", _run, supports=_supports, pack=Pack(_pack), batch_invariant=True),
    Kernel("linear", "torch", ops.linear.reference, supports=_dense, batch_invariant=True),
)
