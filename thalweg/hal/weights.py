"""Weights as formats deliver them and kernels need them: canonical codes, scales and zeros, whatever the file held.

A format (in `quantization/`) turns bytes into a `QTensor`. A kernel's `pack` turns a `QTensor` into the layout it
runs. They meet in `WeightFormat`, so N formats and M kernels never need N x M code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from thalweg.hal.kv import BYTES
from thalweg.hal.step import Array


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """What a kernel must be able to run. `DENSE` is a plain matrix in the model's dtype."""

    kind: Literal["dense", "int", "float"] = "dense"
    bits: int = 16
    group: int = 0
    """Inputs that share a scale: 0 = a whole row of the weight, -1 = the whole tensor."""
    symmetric: bool = True
    """kind "int": False = every group has a zero point, or a minimum."""
    mins: bool = False
    """kind "int", not symmetric: groups have a float32 minimum, which is no multiple of the scale, in place of a zero point."""
    scale_dtype: str = ""
    """"" = float32. Otherwise scales are of this type, under one of the whole tensor (NVFP4: "float8_e4m3fn")."""
    act: str = ""
    """Activation type the product runs in, if not the model's. "int8", "float8_e4m3fn": each row of the input is
    scaled by its largest magnitude and rounded. "int8_per_group": the same for each of the weight's groups of a row."""

    def bytes(self, outputs: int, inputs: int) -> int:
        """Of a quantised matrix at rest: codes, scales and zero points or minima."""
        groups = {0: outputs, -1: 1}.get(self.group, outputs * -(-inputs // max(self.group, 1)))
        scales = groups * (BYTES[self.scale_dtype] if self.scale_dtype else 4)
        return outputs * -(-inputs * self.bits // 8) + scales + (0 if self.symmetric else groups * (4 if self.mins else 1))

    def __str__(self) -> str:
        if self.kind == "dense":
            return "dense"
        group = {0: "row", -1: "tensor"}.get(self.group, f"g{self.group}")
        more = f"-scales-{self.scale_dtype}" if self.scale_dtype else ""
        shift = "" if self.symmetric else "-mins" if self.mins else "-zeros"
        return f"{self.kind}{self.bits}-{group}{shift}{more}{f'-{self.act}' if self.act else ''}"


DENSE = WeightFormat()


@dataclass(frozen=True, slots=True)
class QTensor:
    """A weight matrix [out, in] in canonical form.

    DENSE: data = {"weight": [out, in]}.
    Quantised: data = {"codes": [out, in], "scales": [out, groups] (or [1, 1]), "zeros": [out, groups] where not symmetric},
    weight = (codes - zeros) * scales. kind "int": codes i8 (symmetric, -2**(bits-1) .. 2**(bits-1) - 1) or u8 with u8 zeros,
    or u8 with "mins" float32 [out, groups]. Then weight = codes * scales - mins, both rounded to float32.
    kind "float": codes are 8-bit floats of torch's dtypes. 4-bit floats (e2m1) are held as the float8_e4m3fn of their value.
    groups = in / group, the last may be short. Scales are float32, or of `format.scale_dtype`. Then data["scale"], float32
    [1, 1], multiplies them all.
    """

    format: WeightFormat
    shape: tuple[int, int]
    data: Mapping[str, Array]
    matrices: int = 1
    """Matrices of equal size that it holds, one after another along its outputs: those of experts."""
