"""Patches of encoders with a learned vector behind each row of merged ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from thalweg.media.patches import I32, PatchInputs, cut, merge_order, normalize, spread

if TYPE_CHECKING:
    from thalweg.media.processors.hunyuan import HunYuanVL, Hy4


def stretch_rows(p: Hy4 | HunYuanVL, view: np.ndarray, longer: float) -> PatchInputs:
    """A table of places after its first, stretched over the patches. longer: as of `spread`."""
    rows, columns = (edge // p.patch for edge in view.shape[:2])
    order = merge_order(rows, columns, p.merge)
    place, share = spread(np.arange(rows * columns, dtype=I32), rows, columns, p.side, False, longer=longer)
    result = PatchInputs(cut(normalize(view, p), p.patch), [rows * columns], order, place + I32(1), share)
    merged = order.size // p.merge**2
    mix = np.full((rows // p.merge, columns // p.merge + 1), merged, I32)
    mix[:, :-1] = np.arange(merged, dtype=I32).reshape(mix.shape[0], -1)
    result.mix = mix.reshape(-1, 1)
    return result
