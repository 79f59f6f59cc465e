"""HQQ: `W_q`, `scale` and `zero` of the matrix reshaped to [out * in / group, group] (axis 1). weight = (code - zero) * scale.
The zero point is a fraction, and is kept as a minimum, zero * scale.

Codes are packed by parts of that matrix's rows. Of 4 bits the first half is in the upper half of a byte. Of 3 bits ten parts
share 32 bits. The library computes (code - zero) * scale, here it is code * scale - zero * scale: equal but for the last bits
in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thalweg.errors import UnsupportedModelError
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import Format, Get, WeightPart
from thalweg.quantization.formats.patterns import ends
from thalweg.quantization.formats.settings import names, number, table, tables

if TYPE_CHECKING:
    from torch import Tensor

PARTS = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}
"""Bits of a code -> parts of rows that share a word. Words are bytes, except for 3 bits (32)."""
SETTINGS = (
    "axis", "channel_wise", "compute_dtype", "encoded_state_dict", "group_size", "nbits", "offload_meta", "optimize", "packing",
    "quant_scale", "quant_zero", "round_zero", "shape", "stores_quant_config", "unpack_view_dtype", "view_as_float",
)  # fmt: skip
"""Tensors of a layer that repeat its settings."""
_REFUSED = ("quant_scale", "quant_zero", "view_as_float")
_NUMBERS = ("nbits", "group_size", "axis", *_REFUSED)


class Hqq(Format):
    name = "hqq"
    marks = ("W_q",)

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        config = table(description, "quant_config")
        if not config:
            raise UnsupportedModelError("quantization_config: quant_config: must say how weights are quantised")
        one = "weight_quant_params" in config
        inner = {} if one else tables(description, "quant_config")
        self._default = _weights(config) if one else None
        self._by_name = {name: _weights(v) for name, v in inner.items()}
        for key in ("scale_quant_params", "zero_quant_params"):
            if config.get(key):
                raise UnsupportedModelError(f"quantization_config: {key}: this version requires floats as scales and zeros")
        self._dense = names(description, "skip_modules", default=("lm_head",))
        self._found: dict[str, WeightFormat | None] = {}
        for settings in filter(None, (self._default, *self._by_name.values())):
            _weight_format(settings, "quantization_config")

    def scheme(self, layer: str) -> WeightFormat | None:
        if layer not in self._found:
            settings = self._settings(layer)
            self._found[layer] = None if settings is None else _weight_format(settings, layer)
        return self._found[layer]

    def _settings(self, layer: str) -> Mapping[str, Any] | None:
        if ends(layer, self._dense):
            return None
        own = next((v for name, v in self._by_name.items() if ends(layer, [name])), self._default)
        found = {key: self.value(f"{layer}.{key}") for key in _NUMBERS}
        here = {key: int(a.reshape(-1)[0]) for key, a in found.items() if a is not None}
        return own if not here else {**(own or {}), **here}

    def _bits(self, layer: str) -> int:
        return int((self._settings(layer) or {})["nbits"])

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        form = self.scheme(layer)
        assert form is not None, layer
        if form.group and shape[1] % form.group:
            raise UnsupportedModelError(
                f"{layer}: groups of {form.group} run over rows of {shape[1]} inputs, which are not read by this version: "
                "quantise it with a group_size that divides them"
            )
        groups = shape[0] * (shape[1] // form.group if form.group else 1)
        rows = -(-groups // PARTS[self._bits(layer)])
        return {
            "W_q": WeightPart(((rows, form.group or shape[1]),)),
            "scale": WeightPart(((groups, 1),)),
            "zero": WeightPart(((groups, 1),)),
        }

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        form = self.scheme(layer)
        assert form is not None, layer
        scales, zeros = (get(name).float().reshape(shape[0], -1) for name in ("scale", "zero"))
        codes = _unpack(get("W_q"), self._bits(layer))[: scales.numel()].reshape(shape)
        return QTensor(form, shape, {"codes": codes.contiguous(), "scales": scales, "mins": zeros * scales})

    def ignores(self, name: str) -> bool:
        layer, _, last = name.rpartition(".")
        return last in SETTINGS and self.entry(f"{layer}.W_q") is not None


def _weights(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return table(config, "weight_quant_params") if "weight_quant_params" in config else config


def _weight_format(config: Mapping[str, Any], where: str) -> WeightFormat:
    bits, group, axis = config.get("nbits"), config.get("group_size"), config.get("axis", 1)
    if not isinstance(bits, int) or isinstance(bits, bool) or bits not in PARTS:
        raise UnsupportedModelError(f"{where}: nbits: this version reads HQQ in {sorted(PARTS)} bits, not {bits!r:.40}")
    if axis != 1:
        raise UnsupportedModelError(
            f"{where}: axis: {axis!r:.40}: its groups run along outputs, and kernels share scales along inputs: quantise it "
            "with axis=1"
        )
    for key in _REFUSED:
        if config.get(key):
            raise UnsupportedModelError(f"{where}: {key}: not read by this version; quantise it with {key}=False")
    return WeightFormat(
        "int",
        4 if bits <= 4 else 8,
        0 if group is None else number(group, f"{where}: group_size", 0),
        symmetric=False,
        mins=True,
    )


def _unpack(words: Tensor, bits: int) -> Tensor:
    """[rows / parts, group] -> uint8 [rows, group]: the first part is in the highest bits."""
    import torch

    parts = PARTS[bits]
    wide = words.to(torch.int32)
    codes = [(wide >> (bits * (parts - 1 - i))) & ((1 << bits) - 1) for i in range(parts)]
    return torch.cat(codes).to(torch.uint8)
