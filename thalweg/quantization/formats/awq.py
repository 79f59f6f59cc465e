"""AWQ in its "gemm" packing (AutoAWQ, llm-awq, AutoRound): `qweight` int32 [in, out / 8], `qzeros` int32 [in / group, out / 8],
`scales` float16 [in / group, out]. weight = (code - zero) * scale. Words hold eight outputs, in the order of NIBBLES.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thalweg.errors import UnsupportedModelError
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import Format, Get, WeightPart
from thalweg.quantization.formats.patterns import contains
from thalweg.quantization.formats.settings import names, number
from thalweg.quantization.formats.words import NIBBLES, center_codes, stream

if TYPE_CHECKING:
    from torch import Tensor

BITS = 4


class Awq(Format):
    name = "awq"
    marks = ("qweight",)

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        version = str(description.get("version") or "gemm").lower()
        if version != "gemm":
            raise UnsupportedModelError(
                f"quantization_config: version: this version reads AWQ in its gemm packing, not {version!r:.40}: AutoAWQ "
                'writes gemm with {"version": "GEMM"}'
            )
        bits = description.get("bits", description.get("w_bit", BITS))
        if bits != BITS or isinstance(bits, float):
            raise UnsupportedModelError(f"quantization_config: bits: AWQ's packing is of 4 bits, not {bits!r:.40}")
        self._group = group_size(description.get("group_size", description.get("q_group_size", 128)))
        self._zeros = bool(description.get("zero_point", True))
        self._dense = names(description, "modules_to_not_convert")

    def scheme(self, layer: str) -> WeightFormat | None:
        return None if contains(layer, self._dense) else weight_format(self._group, not self._zeros)

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        return parts(shape, self._group, optional=not self._zeros)

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        zeros = self._zeros or self.entry(f"{layer}.qzeros") is not None
        return read(layer, shape, get, weight_format(self._group, not self._zeros), zeros)


def group_size(value: object) -> int:
    """`WeightFormat.group` for `group_size` of AWQ and GPTQ: -1 is a row."""
    return 0 if value == -1 else number(value, "group_size")


def weight_format(group: int, symmetric: bool) -> WeightFormat:
    return WeightFormat("int", BITS, group, symmetric)


def parts(shape: tuple[int, int], group: int, optional: bool = False) -> Mapping[str, WeightPart]:
    """optional: the zero points."""
    outputs, inputs = shape
    groups, across = -(-inputs // group) if group else 1, -(-outputs * BITS // 32)
    return {
        "qweight": WeightPart(((inputs, across),)),
        "qzeros": WeightPart(((groups, across),), optional),
        "scales": WeightPart(((groups, outputs),)),
    }


def read(layer: str, shape: tuple[int, int], get: Get, form: WeightFormat, zeros: bool) -> QTensor:
    """zeros: has the file zero points?"""
    codes = _outputs(get("qweight"), shape[0])
    points = _outputs(get("qzeros"), shape[0]) if zeros else None
    data = {"codes": codes, "scales": get("scales").T.float().contiguous()}
    if form.symmetric:
        data["codes"] = center_codes(codes, points, BITS, layer)
    elif points is not None:
        data["zeros"] = points
    return QTensor(form, shape, data)


def _outputs(words: Tensor, count: int) -> Tensor:
    """int32 [rows, words] -> uint8 [count, rows]."""
    import torch

    nibbles = stream(words, BITS, words.shape[1] * 8).reshape(words.shape[0], -1, 8)
    return nibbles[..., torch.tensor(NIBBLES)].reshape(words.shape[0], -1)[:, :count].T.contiguous()
