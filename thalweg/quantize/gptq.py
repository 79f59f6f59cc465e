"""GPTQ (Frantar et al. 2022, https://arxiv.org/abs/2210.17323): inputs are rounded in sequence. The error of each is
compensated by the remaining ones, weighted by the inverse Hessian of the outputs' squared error."""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.quantize.grids import Grid, Params, RoundedWeight, concat_groups

BLOCK = 128
"""Inputs between updates of the remaining columns."""


def round_weight(weight: Tensor, grid: Grid, hessian: Tensor, *, damp: float, order: str) -> RoundedWeight:
    """weight float32 [out, in], hessian float32 [in, in]: the sum of x x^T over calibration inputs. damp: part of the mean
    of its diagonal, added to the diagonal. order: "static" rounds the inputs with the largest diagonal first."""
    w, h = weight.clone(), hessian.double()
    diagonal = h.diagonal()
    diagonal[diagonal == 0] = 1  # an input that was never seen: its weights are rounded to nearest
    weights = hessian.diagonal() / hessian.diagonal().mean().clamp(min=1e-30)
    fan_in, group = w.shape[1], grid.group
    turn = torch.argsort(diagonal, descending=True) if order == "static" else torch.arange(fan_in)
    params: list[Params | None] = [None] * -(-fan_in // group)
    if order == "static":  # groups are of inputs as they lie in the file, so their scales are fitted before
        params = [grid.search(w[:, at : at + group], weights[at : at + group]) for at in range(0, fan_in, group)]
    w, upper = w[:, turn], _inverse_root(h[turn][:, turn], damp)
    codes, values = torch.zeros_like(w), torch.zeros_like(w)
    for at in range(0, fan_in, BLOCK):
        end = min(at + BLOCK, fan_in)
        here, lost = w[:, at:end].clone(), torch.zeros(len(w), end - at)
        for i in range(at, end):
            source = int(turn[i])
            g = source // group
            p = params[g]
            if p is None:
                ahead = torch.cat([here[:, i - at :], w[:, end:]], 1)[:, :group]
                p = params[g] = grid.search(ahead, weights[source : source + group])
            column = here[:, i - at : i - at + 1]
            codes[:, source : source + 1] = code = grid.codes(column, p)
            values[:, source : source + 1] = value = grid.values(code, p)
            error = (column - value) / upper[i, i]
            here[:, i - at :] -= error * upper[i, i:end]
            lost[:, i - at : i - at + 1] = error
        w[:, end:] -= lost @ upper[at:end, end:]
    return concat_groups([codes], [values], [p for p in params if p is not None], grid)


def _inverse_root(h: Tensor, damp: float) -> Tensor:
    """The upper Cholesky factor of the inverse, float32. More is added to the diagonal until there is one."""
    mean = h.diagonal().mean()
    while True:
        damped = h + torch.eye(len(h), dtype=h.dtype) * (damp * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not failed:
                root: Tensor = upper.float()
                return root
        damp = max(damp, 1e-4) * 10
