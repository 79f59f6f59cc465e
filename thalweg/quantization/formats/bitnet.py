"""BitNet b1.58, as transformers saves it: weights of -1, 0 and 1, each quarter of the rows in two bits of a byte, and one
`weight_scale`. Inputs are rounded to int8, row by row.

linear_class "bitlinear": the scale divides, "autobitlinear": it multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import Format, Get, WeightPart
from thalweg.quantization.formats.patterns import matches
from thalweg.quantization.formats.settings import names

QUARTERS = 4
CLASSES = ("bitlinear", "autobitlinear")
FORM = WeightFormat("int", 8, act="int8")
"""Wider than need be: products of int8 by int8 with a scale per row have kernels."""


class BitNet(Format):
    name = "bitnet"
    marks = ("weight_scale",)

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        kind = description.get("linear_class", "bitlinear")
        if kind not in CLASSES:
            raise UnsupportedModelError(f"quantization_config: linear_class: this version reads {', '.join(CLASSES)}")
        if kind == "autobitlinear" and description.get("quantization_mode", "offline") != "offline":
            raise UnsupportedModelError(
                "quantization_config: quantization_mode: rounding weights in every step is not supported by this version: "
                "save the model with quantization_mode offline"
            )
        if description.get("use_rms_norm"):
            raise UnsupportedModelError(
                "quantization_config: use_rms_norm: this version has no norm inside its linear layers; it must be false"
            )
        self._divides = kind == "bitlinear"
        self._dense = names(description, "modules_to_not_convert", default=("lm_head",))

    def scheme(self, layer: str) -> WeightFormat | None:
        return None if matches(layer, self._dense) else FORM

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        packed = (-(-shape[0] // QUARTERS), shape[1])
        return {"weight": WeightPart((packed,) if self._divides else (packed, shape)), "weight_scale": WeightPart(((1,), ()))}

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        import torch

        weight, scale = get("weight"), get("weight_scale").float().reshape(1, 1)
        if weight.dtype == torch.uint8:
            codes = torch.cat([(weight >> (2 * i)) & 3 for i in range(QUARTERS)])[: shape[0]].to(torch.int8) - 1
        else:
            codes = weight.to(torch.int8)
            if not torch.equal(codes.to(weight.dtype), weight):
                raise CheckpointError(f"{layer}.weight: not of -1, 0 and 1, as quantization_mode offline says")
        scale = 1 / scale if self._divides else scale
        return QTensor(FORM, shape, {"codes": codes, "scales": scale.expand(shape[0], 1).contiguous()})
