"""8-bit floats with a power of two for each 32 inputs (OCP Microscaling Formats, 1.0): `weight` float8_e4m3fn [out, in] and
bytes of exponents [out, in / 32]. Inputs are rounded alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import Format, Get, WeightPart
from thalweg.quantization.formats.floats import wide
from thalweg.quantization.formats.patterns import matches
from thalweg.quantization.formats.settings import names

FORM = WeightFormat("float", 8, 32, act="mxfp8")


class Mxfp8(Format):
    name = "mxfp8"
    marks = ("weight_scale", "weight_scale_inv")

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        self._dense = names(description, "modules_to_not_convert") + names(description, "ignored_layers")

    def scheme(self, layer: str) -> WeightFormat | None:
        return None if matches(layer, self._dense) else FORM

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        groups = (shape[0], -(-shape[1] // FORM.group))
        return {
            "weight": WeightPart((shape,), dtypes=("float8_e4m3fn",)),
            self._scale(layer): WeightPart((groups,), dtypes=("uint8", "float8_e8m0fnu")),
        }

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        return QTensor(FORM, shape, {"codes": get("weight"), "scales": wide(get(self._scale(layer)), layer)})

    def _scale(self, layer: str) -> str:
        return (self.mark(layer) or self.marks[0]).rpartition(".")[2]
