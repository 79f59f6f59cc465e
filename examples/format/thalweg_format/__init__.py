"""Q8_0 blocks in safetensors: `weight_blocks` uint8 [out, in / 32 * 34], of each block a float16 scale, then 32 int8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.errors import UnsupportedModelError
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import Format, Get, WeightPart

BLOCK, BYTES = 32, 34


class Q8Blocks(Format):
    name = "q8-blocks"

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        if description.get("block", BLOCK) != BLOCK:
            raise UnsupportedModelError(f"quantization_config: block: only blocks of {BLOCK} are read")

    def scheme(self, layer: str) -> WeightFormat | None:
        return None if layer in self.description.get("dense", ()) else WeightFormat("int", 8, BLOCK)

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        return {"weight_blocks": WeightPart(((shape[0], shape[1] // BLOCK * BYTES),))}

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        blocks = get("weight_blocks").reshape(shape[0], -1, BYTES)
        scales = blocks[..., :2].contiguous().view(torch.float16).squeeze(-1).float()
        codes = blocks[..., 2:].contiguous().view(torch.int8).flatten(1)
        return QTensor(WeightFormat("int", 8, BLOCK), shape, {"codes": codes, "scales": scales})
