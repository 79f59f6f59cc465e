"""Weights as formats deliver them and kernels need them: canonical codes, scales and zeros, whatever the file held.

A format (in `quantization/`) turns bytes into a `QTensor`. A kernel's `pack` turns a `QTensor` into the layout it
runs. They meet in `WeightFormat`, so N formats and M kernels never need N x M code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from thalweg.hal.kv import BYTES
from thalweg.hal.step import Array


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """The format of a weight, which a kernel must support to run it. `DENSE` is a plain matrix in the model's dtype."""

    kind: Literal["dense", "int", "float", "table"] = "dense"
    bits: int = 16
    group: int = 0
    """Inputs that share a scale: 0 = a whole row of the weight, -1 = the whole tensor."""
    symmetric: bool = True
    """kind "int": False = every group has a zero point, or a minimum."""
    mins: bool = False
    """kind "int", not symmetric: groups have a float32 minimum, not a multiple of the scale, and no zero point."""
    scale_dtype: str = ""
    """"" = float32. Otherwise scales are of this type, under one of the whole tensor (NVFP4: "float8_e4m3fn")."""
    act: str = ""
    """Activation type the product runs in, if not the model's. "int8", "int4", "float8_e4m3fn": each row of the input is
    scaled by its largest magnitude and rounded. "..._per_group": the same for each of the weight's groups of a row,
    "..._per_128": for each 128 inputs. "..._static": by the scale that the checkpoint has ("input_scale").
    "..._upto1200.0": a row's largest magnitude counts as 1200 at most. "..._keep4": a row is scaled by its fifth largest
    magnitude, and the up to 4 inputs above it keep their values. "mxfp8", "mxfp4", "nvfp4": by groups of 32, 32 and
    16. Scales of the first two are powers of two, rounded down, or as "..._even" or "..._up" says
    (`hal.ops.quantise.round_rows`)."""
    levels: tuple[float, ...] = ()
    """kind "table": the value of each code."""
    reordered: bool = False
    """Inputs are taken in another order ("perm") before the product: act-order of GPTQ."""
    smoothed: bool = False
    """Inputs are multiplied by one value each ("in_scale") before the product: AWQ and SmoothQuant of ModelOpt."""
    sixteenths: bool = False
    """kind "int" with minimums: rounding makes them multiples of a 16th of the scale where it can, so that kernels may hold
    them in fewer bytes."""

    code_bits: int = 0
    """kind "int" of 8 bits, symmetric, in groups: rounding uses codes of so many bits only, so that kernels may hold them in
    fewer bytes. 0: all."""

    def bytes(self, outputs: int, inputs: int) -> int:
        """Of a quantised matrix at rest: codes, scales and zero points or minimums."""
        groups = {0: outputs, -1: 1}.get(self.group, outputs * -(-inputs // max(self.group, 1)))
        scales = groups * BYTES[self.scale_dtype] + 4 * outputs if self.scale_dtype else 4 * groups
        return outputs * -(-inputs * self.bits // 8) + scales + (0 if self.symmetric else groups * (4 if self.mins else 1))

    def shared_bytes(self, inputs: int) -> int:
        """Bytes that a whole product holds once: its levels, and the data that changes its inputs."""
        each = 4 * inputs
        return 4 * len(self.levels) + each * (self.reordered + self.smoothed) + (4 if self.own_scale else 0)

    @property
    def own_scale(self) -> bool:
        """Has the checkpoint a scale for the inputs? Names of `act` that need data["input_scale"]."""
        return self.act.endswith("_static") or self.act == "nvfp4"

    @property
    def joins(self) -> bool:
        """May weights of this format share one product? Not if each changes its inputs."""
        return not (self.reordered or self.smoothed or self.own_scale)

    @property
    def product(self) -> WeightFormat:
        """The format that a kernel runs, once a layer has reordered and smoothed the inputs."""
        return replace(self, reordered=False, smoothed=False) if self.reordered or self.smoothed else self

    def __str__(self) -> str:
        if self.kind == "dense":
            return "dense"
        group = {0: "row", -1: "tensor"}.get(self.group, f"g{self.group}")
        more = f"-scales-{self.scale_dtype}" if self.scale_dtype else ""
        shift = "" if self.symmetric else "-sixteenths" if self.sixteenths else "-mins" if self.mins else "-zeros"
        order = f"{'-reordered' if self.reordered else ''}{'-smoothed' if self.smoothed else ''}"
        few = f"-codes{self.code_bits}" if self.code_bits else ""
        return f"{self.kind}{self.bits}-{group}{few}{shift}{more}{f'-{self.act}' if self.act else ''}{order}"


DENSE = WeightFormat()


INPUTS = ("perm", "in_scale")
"""Data of a QTensor for layers, which change the inputs before a product."""
ONCE = ("levels", "input_scale", *INPUTS)
"""Data of a QTensor that all its rows share."""
PER_GROUP = ("scales", "zeros", "mins")
"""Data of a QTensor with a column for each group of inputs."""


@dataclass(frozen=True, slots=True)
class QTensor:
    """A weight matrix [out, in] in canonical form.

    DENSE: data = {"weight": [out, in]}.
    Quantised: data = {"codes": [out, in], "scales": [out, groups] (or [1, 1]), "zeros": [out, groups] where not symmetric},
    weight = (codes - zeros) * scales. kind "int": codes i8 (symmetric, -2**(bits-1) .. 2**(bits-1) - 1) or u8 with u8 zeros,
    or u8 with "mins" float32 [out, groups]. Then weight = codes * scales - mins, both rounded to float32.
    kind "float": codes are 8-bit floats of torch's dtypes. 4-bit floats (e2m1) are held as the float8_e4m3fn of their value.
    kind "table": codes u8, weight = format.levels[code] * scale. data["levels"] has them in float32 [1, levels].
    groups = in / group, the last may be short. Scales are float32, or of `format.scale_dtype`. Then data["scale"], float32
    [out, 1], multiplies those of its row.
    Changes to the inputs, in this order: "perm" i32 [1, in] (reordered): input i of the weight is input perm[i] of the layer.
    "in_scale" float32 [1, in] (smoothed): multiplies inputs of the weight. Layers do both, and no kernel sees them.
    "input_scale" float32 [1, 1] (`own_scale`): the static scale of rounded inputs. Of "nvfp4" it multiplies the groups'.
    """

    format: WeightFormat
    shape: tuple[int, int]
    data: Mapping[str, Array]
    matrices: int = 1
    """Matrices of equal size that it holds, in sequence along its outputs: those of experts."""
