"""4-bit floats with a power of two for each 32 inputs, as gpt-oss is published: experts only. All of a layer's experts are
in one tensor: `experts.gate_up_proj_blocks` bytes [E, 2 F, H / 32, 16] and `_scales` [E, 2 F, H / 32], `down_proj_*` alike.
Rows of gate and up alternate, gate first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import Format, Get, WeightPart
from thalweg.quantization.formats.floats import float4, wide
from thalweg.quantization.formats.patterns import matches
from thalweg.quantization.formats.settings import names

FORM = WeightFormat("float", 4, 32)
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj")
"""How layers know an expert's matrix: module, number, matrix."""
FIRST = {"gate": 0, "up": 1}
"""Of alternating rows."""


class Mxfp4(Format):
    name = "mxfp4"
    marks = ("blocks",)

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        self._dense = names(description, "modules_to_not_convert")

    def scheme(self, layer: str) -> WeightFormat | None:
        return FORM if EXPERT.fullmatch(layer) and not matches(layer, self._dense) else None

    def mark(self, layer: str) -> str | None:
        name = f"{_tensor(layer)}_blocks" if EXPERT.fullmatch(layer) else ""
        return name if name and self.entry(name) is not None else None

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        found = EXPERT.fullmatch(layer)
        assert found is not None, layer
        name, at = _tensor(layer), int(found[2])
        stored = self.entry(f"{name}_blocks")
        experts = stored[1][0] if stored and stored[1] else at + 1
        rows, groups = shape[0] * (2 if found[3] in FIRST else 1), -(-shape[1] // FORM.group)
        return {
            "blocks": WeightPart(((experts, rows, groups, FORM.group // 2),), dtypes=("uint8",), name=f"{name}_blocks", at=at),
            "scales": WeightPart(((experts, rows, groups),), dtypes=("uint8", "float8_e8m0fnu"), name=f"{name}_scales", at=at),
        }

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        found = EXPERT.fullmatch(layer)
        assert found is not None, layer
        blocks, scales = get("blocks"), get("scales")
        if found[3] in FIRST:
            blocks, scales = blocks[FIRST[found[3]] :: 2], scales[FIRST[found[3]] :: 2]
        codes = float4(blocks.contiguous().flatten(1))[:, : shape[1]].contiguous()
        return QTensor(FORM, shape, {"codes": codes, "scales": wide(scales.contiguous(), layer)})


def _tensor(layer: str) -> str:
    """Prefix of the names of the tensors that hold this expert's matrix."""
    module, _, matrix = EXPERT.fullmatch(layer).groups()  # type: ignore[union-attr]
    return f"{module}.{'gate_up' if matrix in FIRST else matrix}_proj"
