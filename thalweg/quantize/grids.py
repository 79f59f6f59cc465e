"""Rounding weights to a format: scales fitted to some inputs, codes, and the values of the codes.

Scales are rounded to the dtype of the files before any code is chosen, so the reported loss is that of the served weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thalweg.hal.ops.quantise import E2M1, to_e2m1
from thalweg.quantize.formats import WORDS, QuantizeFormat

FP8 = torch.float8_e4m3fn
FP8_TOP, FP4_TOP = torch.finfo(FP8).max, E2M1[-1]
SHRINKS = tuple(1 - 0.04 * i for i in range(11))
"""Fractions of the largest magnitude that the search fits scales to. Larger values are clipped."""


@dataclass(frozen=True, slots=True)
class Params:
    """Of some inputs of every output, float32 [out, 1] each. scale multiplies codes less zero."""

    scale: Tensor
    zero: Tensor | None
    held: Tensor
    """The scale as files keep it: [out, 1], or [out / block, 1]."""


class Grid:
    """Of one weight [out, in]. dtype: that of the model's files, and of scales where the format says nothing else."""

    def __init__(self, form: QuantizeFormat, weight: Tensor, dtype: torch.dtype) -> None:
        self.form, self._dtype = form, torch.float16 if form.layout in WORDS else dtype
        self.group = form.group or weight.shape[1]
        top = weight.abs().amax().float()
        self.outer = FP8_TOP * FP4_TOP / top if top > 0 else torch.ones(())
        """Factor of NVFP4's scales before they are rounded. Readers divide by it."""

    def fit(self, w: Tensor, shrink: float | Tensor = 1.0) -> Params:
        """Scales for these inputs [out, n], all of one group."""
        form = self.form
        if not form.symmetric:
            low, high = w.amin(1, keepdim=True).clamp(max=0) * shrink, w.amax(1, keepdim=True).clamp(min=0) * shrink
            most = (1 << form.bits) - 1
            held = self._cast_scales((high - low) / most)
            scale = held.float()
            return Params(scale, torch.round(-low / scale).clamp(0, most), held)
        top = w.abs().amax(1, keepdim=True) * shrink
        if form.block:
            top = torch.stack([part.amax(0) for part in _blocks(top, form.block)])
        scale, held = self._scales(top)
        if form.block:
            scale = scale.repeat_interleave(form.block, 0)[: len(w)]
        return Params(scale, None, held)

    def _scales(self, top: Tensor) -> tuple[Tensor, Tensor]:
        """(float32, as files keep it) for largest magnitudes."""
        form = self.form
        if form.scales == "e8m0":
            exponent = torch.ceil(torch.log2(_replace_zeros(top / FP4_TOP))).clamp(-127, 127)
            return torch.exp2(exponent), (exponent + 127).to(torch.uint8)
        if form.scales:
            ends = torch.finfo(FP8)
            held = (top / FP4_TOP * self.outer).clamp(ends.smallest_normal * ends.eps, FP8_TOP).to(FP8)
            return held.float() / self.outer, held
        held = self._cast_scales(top / (FP8_TOP if form.kind == "float" else ((1 << form.bits) - 1) / 2))
        return held.float(), held

    def _cast_scales(self, scales: Tensor) -> Tensor:
        """In the type of files, in which none becomes 0."""
        held, ends = _replace_zeros(scales).to(self._dtype), torch.finfo(self._dtype)
        return held.clamp(min=ends.smallest_normal * ends.eps)

    def codes(self, w: Tensor, p: Params) -> Tensor:
        """The nearest codes, in float32, of inputs [out, n]. Integers with a zero point count from 0."""
        form, x = self.form, w / p.scale
        if form.kind == "float":
            return to_e2m1(x) if form.bits == 4 else x.clamp(-FP8_TOP, FP8_TOP).to(FP8).float()
        if p.zero is not None:
            return (torch.round(x) + p.zero).clamp(0, (1 << form.bits) - 1)
        half = 1 << (form.bits - 1)
        return torch.round(x).clamp(-half, half - 1)

    def values(self, codes: Tensor, p: Params) -> Tensor:
        return (codes if p.zero is None else codes - p.zero) * p.scale

    def search(self, w: Tensor, weights: Tensor | None) -> Params:
        """`fit`, with the largest magnitude shrunk as far as lowers the squared error, output by output.
        weights: of the inputs' errors, [n]. None: no search."""
        best = self.fit(w)
        if weights is None or self.form.scales == "e8m0":
            return best
        least, chosen = self._error(w, best, weights), torch.ones(len(w), 1)
        for shrink in SHRINKS[1:]:
            error = self._error(w, self.fit(w, shrink), weights)
            better = error < least
            least, chosen = torch.where(better, error, least), torch.where(better, torch.tensor(shrink), chosen)
        return self.fit(w, chosen)

    def _error(self, w: Tensor, p: Params, weights: Tensor) -> Tensor:
        """[out, 1]; of outputs that share scales the sum over them."""
        error = ((self.values(self.codes(w, p), p) - w).square() * weights).sum(1, keepdim=True)
        if not self.form.block:
            return error
        sums = torch.stack([part.sum(0) for part in _blocks(error, self.form.block)])
        return sums.repeat_interleave(self.form.block, 0)[: len(w)]


@dataclass(slots=True)
class RoundedWeight:
    """A weight on its grid."""

    codes: Tensor
    """float32 [out, in]."""
    values: Tensor
    """float32 [out, in]: the values of the codes."""
    held: Tensor
    """Scales as files keep them, a column for each group."""
    zeros: Tensor | None
    outer: Tensor


def nearest(weight: Tensor, grid: Grid, weights: Tensor | None = None) -> RoundedWeight:
    """float32 [out, in] rounded to nearest. weights: of inputs, [in], for the search of scales; None: there is none."""
    parts = []
    for at in range(0, weight.shape[1], grid.group):
        here = slice(at, at + grid.group)
        p = grid.search(weight[:, here], None if weights is None else weights[here])
        codes = grid.codes(weight[:, here], p)
        parts.append((codes, grid.values(codes, p), p))
    return concat_groups([c for c, _, _ in parts], [v for _, v, _ in parts], [p for _, _, p in parts], grid)


def concat_groups(codes: list[Tensor], values: list[Tensor], params: list[Params], grid: Grid) -> RoundedWeight:
    """Of groups, in order."""
    zeros = [p.zero for p in params if p.zero is not None]
    held = torch.cat([p.held for p in params], 1)
    return RoundedWeight(torch.cat(codes, 1), torch.cat(values, 1), held, torch.cat(zeros, 1) if zeros else None, grid.outer)


def _blocks(values: Tensor, size: int) -> list[Tensor]:
    """[n, 1] in parts of so many rows, the last of which may be short."""
    return [values[i : i + size] for i in range(0, len(values), size)]


def _replace_zeros(scales: Tensor) -> Tensor:
    """Zeros, and scales that underflow in the dtype of files, replaced by one."""
    return torch.where(scales > 1e-30, scales, torch.ones_like(scales))
