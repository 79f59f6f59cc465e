"""MLX, as `mlx_lm.convert -q` writes it: `weight` uint32 [out, in * bits / 32] and `scales` [out, in / group].

| mode | bits | group | scales | weight |
|---|---|---|---|---|
| affine | 2, 3, 4, 5, 6, 8 | 32, 64, 128 | floats, and `biases` alike | code * scale + bias |
| mxfp4 | 4 | 32 | exponents, uint8 | e2m1 * scale |
| mxfp8 | 8 | 32 | exponents, uint8 | e4m3 * scale |
| nvfp4 | 4 | 16 | e4m3, uint8 | e2m1 * scale |

Codes are packed from the lowest bit of the first word on. Codes of 3, 5 and 6 bits may cross words. config.json has the
settings under `quantization`, with an entry for each layer that differs: other settings, or false for a dense layer.

`mx.dequantize` computes in the dtype of the scales. Here product and sum are each rounded to float32, which are its bits for
float32 scales.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thalweg.errors import UnsupportedModelError
from thalweg.hal.weights import DENSE, QTensor, WeightFormat
from thalweg.quantization.format import FLOATS, Format, Get, WeightPart
from thalweg.quantization.formats.floats import float4, wide
from thalweg.quantization.formats.patterns import spellings
from thalweg.quantization.formats.words import WORD, stream

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
MODES: Mapping[str, WeightFormat] = {
    "mxfp4": WeightFormat("float", 4, 32),
    "mxfp8": WeightFormat("float", 8, 32),
    "nvfp4": WeightFormat("float", 4, 16, scale_dtype="float8_e4m3fn"),
}
"""Modes without biases. Each has one width and one group."""
_EXPERT = re.compile(r"\.experts\.\d+\.")


@dataclass(frozen=True, slots=True)
class MlxSettings:
    """How the codes of one layer are stored."""

    mode: str
    bits: int
    group: int

    @property
    def format(self) -> WeightFormat:
        """Codes of up to 4 bits are held in 4, others in 8."""
        if self.mode in MODES:
            return MODES[self.mode]
        return WeightFormat("int", 4 if self.bits <= 4 else 8, self.group, symmetric=False, mins=True)


class Mlx(Format):
    name = "mlx"
    marks = ("scales",)

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        self._default = _read_settings(description, "")
        self._by_name = {
            name: _read_settings(entry, f"{name}: ") if isinstance(entry, Mapping) else entry
            for name, entry in description.items()
            if name != "stored" and (isinstance(entry, Mapping) or entry is False)
        }

    def scheme(self, layer: str) -> WeightFormat | None:
        found = self._settings(layer)
        return None if found is None else found.format

    def of(self, role: str, name: str) -> WeightFormat:
        """Embeddings too: their rows are decoded at lookup."""
        if role in ("embedding", "tied"):
            return self._layer_format(name.removesuffix(".weight")) or DENSE
        return super().of(role, name)

    def _settings(self, layer: str) -> MlxSettings | None:
        """None: the layer is dense. MLX keeps the experts of a layer in one tensor, and names that."""
        for name in spellings(_EXPERT.sub(".switch_mlp.", layer)):
            if name in self._by_name:
                return self._by_name[name] or None
        return self._default

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        entry = self._settings(layer)
        assert entry is not None, layer
        rows, inputs = shape
        if inputs % entry.group:
            raise UnsupportedModelError(f"{layer}: its {inputs} inputs are no multiple of the group_size, {entry.group}")
        groups = ((rows, inputs // entry.group),)
        codes = WeightPart(((rows, inputs * entry.bits // WORD),), dtypes=("uint32",))
        if entry.mode in MODES:
            return {"weight": codes, "scales": WeightPart(groups, dtypes=("uint8",))}
        return {"weight": codes, "scales": WeightPart(groups, dtypes=FLOATS), "biases": WeightPart(groups, dtypes=FLOATS)}

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        import torch

        entry = self._settings(layer)
        assert entry is not None, layer
        words, scales = get("weight"), get("scales")
        if entry.mode == "affine":
            codes = stream(words.view(torch.int32), entry.bits, shape[1])
            return QTensor(entry.format, shape, {"codes": codes, "scales": scales.float(), "mins": -get("biases").float()})
        raw = words.view(torch.uint8)
        codes = raw.view(torch.float8_e4m3fn) if entry.bits == 8 else float4(raw)
        if entry.mode == "nvfp4":
            data = {"codes": codes, "scales": scales.view(torch.float8_e4m3fn), "scale": torch.ones(shape[0], 1)}
            return QTensor(entry.format, shape, data)
        return QTensor(entry.format, shape, {"codes": codes, "scales": wide(scales, layer)})


def _read_settings(entry: Mapping[str, Any], where: str) -> MlxSettings:
    """Settings of all layers, or of one, which inherits none. UnsupportedModelError names a setting that MLX does not write."""
    mode = entry.get("mode") or "affine"
    if mode not in ("affine", *MODES):
        raise UnsupportedModelError(
            f"quantization: {where}mode: this version reads MLX in affine, {', '.join(MODES)}, not {mode!r:.40}"
        )
    if entry.get("quantize_input"):
        raise UnsupportedModelError(
            f"quantization: {where}quantize_input: rounded inputs are not supported: quantise the model without"
        )
    one = MODES.get(mode)
    bits = _choose(entry, "bits", (one.bits,) if one else BITS, mode, where) or (one.bits if one else 4)
    group = _choose(entry, "group_size", (one.group,) if one else GROUPS, mode, where) or (one.group if one else 64)
    return MlxSettings(mode, bits, group)


def _choose(entry: Mapping[str, Any], key: str, known: tuple[int, ...], mode: str, where: str) -> int | None:
    """A number among `known`. None, where it is absent or null: the mode's default."""
    value = entry.get(key)
    if value is not None and (type(value) is not int or value not in known):
        raise UnsupportedModelError(
            f"quantization: {where}{key}: MLX's {mode} has {', '.join(map(str, known))}, not {value!r:.40}"
        )
    return value
