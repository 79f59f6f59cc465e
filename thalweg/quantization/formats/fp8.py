"""8-bit floats with a scale per block, as DeepSeek-V3 and many after it are published: `weight` float8_e4m3fn [out, in] and
`weight_scale_inv` [out / 128, in / 128], which multiplies, whatever its name says. The last blocks may be partial.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.errors import UnsupportedModelError
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import Format, Get, Part
from thalweg.quantization.formats.patterns import matches


class BlockFp8(Format):
    name = "fp8"

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        block = description.get("weight_block_size")
        if not (isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)):
            raise UnsupportedModelError(
                f"quantization_config: weight_block_size: this version reads fp8 by blocks ([128, 128]), not {block!r:.80}"
            )
        if (activations := description.get("activation_scheme", "dynamic")) != "dynamic":
            raise UnsupportedModelError(
                f"quantization_config: activation_scheme: this version rounds inputs by scales of their own (dynamic), not "
                f"{activations!r:.80}"
            )
        self._rows, self._columns = block
        self._dense = description.get("modules_to_not_convert") or description.get("ignored_layers") or []

    def scheme(self, layer: str) -> WeightFormat | None:
        if layer.rpartition(".")[2] == "lm_head" or matches(layer, self._dense):
            return None
        return WeightFormat("float", 8, self._columns, act="float8_e4m3fn_per_group")

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, Part]:
        blocks = (-(-shape[0] // self._rows), -(-shape[1] // self._columns))
        return {"weight": Part((shape,)), "weight_scale_inv": Part((blocks,))}

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        form = self.scheme(layer)
        assert form is not None
        return QTensor(form, shape, {"codes": get("weight"), "scales": by_rows(get("weight_scale_inv"), self._rows, shape[0])})


def by_rows(blocks: Any, size: int, rows: int) -> Any:
    """Scales [rows / size, groups] of blocks -> float32 [rows, groups]: every row of a block has the block's. It costs 4 bytes
    per group, and rows can be joined and divided anywhere."""
    return blocks.float().repeat_interleave(size, 0)[:rows].contiguous()
