"""Weights as formats deliver them and kernels want them: canonical codes, scales and zeros, whatever the file held.

A format (in `quantization/`) turns bytes into a `QTensor`; a kernel's `pack` turns a `QTensor` into the layout it runs.
They meet in `WeightFormat`, so N formats and M kernels never need N x M code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from thalweg.hal.step import Array


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """What a kernel must be able to run. `DENSE` is a plain matrix in the model's dtype."""

    kind: Literal["dense", "int", "float"] = "dense"
    bits: int = 16
    group: int = 0
    """Inputs that share a scale: 0 = a whole row of the weight, -1 = the whole tensor."""
    symmetric: bool = True
    scale_dtype: str = ""
    act: str = ""
    """Activation type the product runs in, if not the model's ("int8", "float8_e4m3fn")."""


DENSE = WeightFormat()


@dataclass(frozen=True, slots=True)
class QTensor:
    """A weight matrix [out, in] in canonical form. DENSE: data = {"weight": [out, in]}."""

    format: WeightFormat
    shape: tuple[int, int]
    data: Mapping[str, Array]
