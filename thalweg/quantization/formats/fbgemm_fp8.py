"""8-bit floats of FBGEMM, as Llama 3.1 405B was published: `weight` float8_e4m3fn and `weight_scale` of each output. Rows of
the input are rounded by their largest magnitude, which counts as `activation_scale_ub` at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.errors import UnsupportedModelError
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import FLOATS, Format, Get, WeightPart
from thalweg.quantization.formats.floats import per_row
from thalweg.quantization.formats.patterns import matches
from thalweg.quantization.formats.settings import names


class FbgemmFp8(Format):
    name = "fbgemm_fp8"
    marks = ("weight_scale",)

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        most = description.get("activation_scale_ub")
        if not isinstance(most, int | float) or isinstance(most, bool) or most <= 0:
            raise UnsupportedModelError(
                f"quantization_config: activation_scale_ub: must be the largest magnitude of inputs (1200.0), not {most!r:.80}"
            )
        self._form = WeightFormat("float", 8, act=f"float8_e4m3fn_upto{float(most)}")
        self._dense = names(description, "modules_to_not_convert")

    def scheme(self, layer: str) -> WeightFormat | None:
        return None if matches(layer, self._dense) else self._form

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        return {
            "weight": WeightPart((shape,), dtypes=("float8_e4m3fn",)),
            "weight_scale": WeightPart(((shape[0], 1), (shape[0],)), dtypes=FLOATS),
            "input_scale_ub": WeightPart(((), (1,)), optional=True, dtypes=FLOATS),
        }

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        return QTensor(self._form, shape, {"codes": get("weight"), "scales": per_row(get("weight_scale").float(), shape[0])})
