"""Blocks of GGUF files. Every layer is of the type that its tensor has: the description lists them.

Codes need between 2 and 8 bits; they are held in 4 or in 8. 4-bit floats (MXFP4, NVFP4) are held as such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from thalweg.checkpoint.gguf.blocks import LAYOUTS, decode_blocks
from thalweg.checkpoint.gguf.pieces import columns
from thalweg.checkpoint.gguf.types import TYPES
from thalweg.errors import UnsupportedModelError
from thalweg.hal.weights import DENSE, QTensor, WeightFormat
from thalweg.quantization.format import Format, Get, WeightPart

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("MXFP4", "NVFP4")
"""Types with codes of twice a 4-bit float."""
BY_METHOD = {"w4a8": "int8_per_group", "w4a16": "", "int4": "int8_per_group"}
"""Methods of `online` -> `WeightFormat.act`. The device decides about that of int4 (`Gguf.choose`)."""
_BY_NAME = {t.name: t for t in TYPES.values()}


def weight_format(name: str) -> WeightFormat:
    """The format in which layers hold blocks of this type."""
    layout = LAYOUTS[name]
    if name in FLOATS:
        return WeightFormat("float", 4, layout.group)
    return WeightFormat("int", 4 if layout.bits <= 4 else 8, layout.group, symmetric=not layout.mins, mins=layout.mins)


class Gguf(Format):
    name = "gguf"

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        types = description.get("types")
        if not isinstance(types, Mapping) or not types.keys() or not set(types.values()) <= LAYOUTS.keys():
            raise UnsupportedModelError(
                "quantization_config: types: must name the type of each layer's blocks (a GGUF file does)"
            )
        self._types: Mapping[str, str] = types
        self._tiles: Mapping[str, list[int]] = description.get("tiles") or {}
        self._act, self._optional = "", False

    def scheme(self, layer: str) -> WeightFormat | None:
        return weight_format(self._types[layer]) if layer in self._types else None

    def apply_method(self, method: str) -> Gguf | None:
        """w4a8: layers of 4 bits round their inputs to 8, group by group. w4a16: nothing is rounded, as without a word."""
        if method not in BY_METHOD:
            return None
        result = Gguf(self.description)
        result._act, result._optional = BY_METHOD[method], method == "int4"
        return result

    def choose(self, gains: Callable[[WeightFormat], bool]) -> Gguf:
        """int4: inputs are rounded if the device gains by it in the commonest types of 4 bits, Q4_K's and Q4_0's."""
        if not self._optional or all(gains(replace(weight_format(name), act=self._act)) for name in ("Q4_K", "Q4_0")):
            return self
        return Gguf(self.description)

    def of(self, role: str, name: str) -> WeightFormat:
        """Embeddings too: their rows are decoded at lookup."""
        form = (self.scheme(name.removesuffix(".weight")) if role != "plain" else None) or DENSE
        four = role == "linear" and (form.kind, form.bits) == ("int", 4)
        return replace(form, act=self._act) if four and self._act else form

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        kind = _BY_NAME[self._types[layer]]
        return {"weight": WeightPart(((shape[0], kind.row(shape[1])),))}

    def blocks(self, layer: str) -> str:
        return "" if layer in self._tiles else self._types[layer]

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        import torch

        name, form = self._types[layer], weight_format(self._types[layer])
        result = decode_blocks(_BY_NAME[name], get("weight").numpy())
        codes = torch.from_numpy(result.codes)
        if name in FLOATS:
            data = {"codes": (codes.float() / 2).to(torch.float8_e4m3fn), "scales": torch.from_numpy(result.scales) * 2}
        else:
            data = {"codes": codes, "scales": torch.from_numpy(result.scales)}
        if result.mins is not None:
            data["mins"] = torch.from_numpy(result.mins)
        if layer in self._tiles:
            data = {key: _in_order(values, self._tiles[layer], form.group, key == "codes") for key, values in data.items()}
        return QTensor(form, shape, data)


def _in_order(values: Tensor, tiles: Sequence[int], group: int, codes: bool) -> Tensor:
    """Columns in the order of transformers. codes: one for each input; else one for each group of inputs."""
    import torch

    keys, each, size = tiles
    order = columns((keys, each, size if codes else size // group))
    return values[:, torch.from_numpy(order)].contiguous()
