"""8-bit floats, as DeepSeek-V3 and many after it are published: `weight` float8_e4m3fn [out, in] and its scale, which
multiplies whether it is called `weight_scale`, `weight_scale_inv` or `scale`. There is one scale of the tensor, of each
output, or of each block [⌈out / rows⌉, ⌈in / columns⌉]. The last blocks may be partial. Scales are floats, or bytes of
exponents (ue8m0).

DeepSeek-V4 also has experts in 4-bit floats: `weight` bytes [out, in / 2], a scale for each 32 inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.errors import UnsupportedModelError
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import FLOATS, Format, Get, WeightPart
from thalweg.quantization.formats.floats import by_rows, float4, per_row, whole, wide
from thalweg.quantization.formats.patterns import matches
from thalweg.quantization.formats.settings import names

SCALES = (*FLOATS, "uint8", "float8_e8m0fnu")
"""Dtypes of scales."""
BYTES = ("uint8", "int8")
"""Dtypes of 4-bit experts, two codes to a byte."""
MICRO = WeightFormat("float", 4, 32)


class Fp8(Format):
    name = "fp8"
    marks = ("weight_scale_inv", "weight_scale", "scale")

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        self._block = _block(description.get("weight_block_size"))
        scheme = description.get("activation_scheme") or "dynamic"
        if scheme not in ("dynamic", "static") or (scheme == "static" and self._block):
            raise UnsupportedModelError(
                "quantization_config: activation_scheme: this version rounds inputs by computed scales (dynamic), or by "
                f"one scale of the checkpoint (static) where weight_block_size is absent, not {scheme!r:.80}"
                f"{' with blocks' if self._block else ''}"
            )
        if (kind := description.get("fmt") or "e4m3") not in ("e4m3", "float8_e4m3fn"):
            raise UnsupportedModelError(f"quantization_config: fmt: this version reads e4m3, not {kind!r:.80}")
        self._static = scheme == "static"
        self._dense = names(description, "modules_to_not_convert") + names(description, "ignored_layers")

    def scheme(self, layer: str) -> WeightFormat | None:
        if matches(layer, self._dense):
            return None
        if self._micro(layer):
            return MICRO
        if self._block:
            return WeightFormat("float", 8, self._block[1], act="float8_e4m3fn_per_group")
        return WeightFormat("float", 8, act="float8_e4m3fn_static" if self._static else "float8_e4m3fn")

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        out, fan_in = shape
        if self._micro(layer):
            return {"weight": WeightPart(((out, fan_in // 2),), dtypes=BYTES),
                    self._scale(layer): WeightPart(((out, -(-fan_in // MICRO.group)),), dtypes=SCALES)}  # fmt: skip
        result = {"weight": WeightPart((shape,), dtypes=("float8_e4m3fn",))}
        if self._block:
            rows, columns = self._rows(layer, out), self._block[1]
            result[self._scale(layer)] = WeightPart(((-(-out // rows), -(-fan_in // columns)),), dtypes=SCALES)
        else:
            result[self._scale(layer)] = WeightPart(whole(out), dtypes=FLOATS)
        result["input_scale"] = WeightPart(((), (1,)), optional=not self._static, dtypes=FLOATS)
        return result

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        form = self.scheme(layer)
        assert form is not None
        scales = wide(get(self._scale(layer)), layer)
        if form == MICRO:
            return QTensor(form, shape, {"codes": float4(get("weight")), "scales": scales})
        scales = by_rows(scales, self._rows(layer, shape[0]), shape[0]) if self._block else per_row(scales, shape[0])
        data = {"codes": get("weight"), "scales": scales}
        if form.own_scale:
            data["input_scale"] = get("input_scale").float().reshape(1, 1)
        return QTensor(form, shape, data)

    def _micro(self, layer: str) -> bool:
        stored = self.entry(f"{layer}.weight")
        return stored is not None and stored[0] in BYTES

    def _rows(self, layer: str, outputs: int) -> int:
        """Rows of a block: one where the files have a row of scales for each output, as tables of embeddings do."""
        assert self._block is not None
        stored = self.entry(f"{layer}.{self._scale(layer)}")
        return 1 if stored is not None and stored[1][:1] == (outputs,) else self._block[0]

    def _scale(self, layer: str) -> str:
        """The name of the layer's scale."""
        found = self.mark(layer)
        return found.rpartition(".")[2] if found else "weight_scale_inv" if self._block else "weight_scale"


def _block(shape: Any) -> tuple[int, int] | None:
    if shape is None:
        return None
    if not (isinstance(shape, list) and len(shape) == 2 and all(isinstance(n, int) and n > 0 for n in shape)):
        raise UnsupportedModelError(
            f"quantization_config: weight_block_size: must be rows and columns of a block ([128, 128]), not {shape!r:.80}"
        )
    return shape[0], shape[1]
