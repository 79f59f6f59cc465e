"""Checkpoints of the compressed-tensors library (LLM Compressor): groups of layers, each with a way of its own to hold its
weights. Read here: integers packed in words of 32 bits ("pack-quantized"), 8-bit integers ("int-quantized"), 8-bit floats
per tensor, output or block ("float-quantized").

Layouts are those that version 0.20 of the library writes (its `compressors`), and tests hold every one against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thalweg.errors import UnsupportedModelError
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import Format, Get, Part
from thalweg.quantization.formats.fp8 import by_rows
from thalweg.quantization.formats.patterns import matches

WORD = 32
"""Bits of the words that codes are packed in."""
LAYOUTS = ("pack-quantized", "int-quantized", "float-quantized")
_CACHE = (".k_scale", ".v_scale", ".q_scale")
_AWAY = "this version reads " + ", ".join(LAYOUTS)


@dataclass(frozen=True, slots=True)
class _Group:
    """Of layers that are held alike."""

    targets: tuple[str, ...]
    layout: str
    format: WeightFormat
    block: tuple[int, int] | None
    """Rows and columns that share a scale, where both are several."""

    def scales(self, shape: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
        """Shapes that the scales of such a weight may have."""
        if self.block is not None:
            return ((-(-shape[0] // self.block[0]), -(-shape[1] // self.block[1])),)
        if self.format.group:
            return ((shape[0], -(-shape[1] // self.format.group)),)
        return ((shape[0], 1), (1,), (1, 1), ())  # a row each, or one for all


class CompressedTensors(Format):
    name = "compressed-tensors"

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        groups = description.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise UnsupportedModelError("quantization_config: config_groups: must name the groups of quantised layers")
        for key in ("transform_config", "sparsity_config"):
            said = description.get(key)
            if said and not (key == "sparsity_config" and said.get("format") == "dense"):
                raise UnsupportedModelError(f"quantization_config: {key}: not read by this version; it must be absent")
        default = str(description.get("format", ""))
        self._groups = [_group(name, g, default) for name, g in groups.items()]
        self._ignore = tuple(str(rule) for rule in description.get("ignore") or ())

    def scheme(self, layer: str) -> WeightFormat | None:
        group = self._group(layer)
        return None if group is None else group.format

    def _group(self, layer: str) -> _Group | None:
        if matches(layer, self._ignore):
            return None
        return next((g for g in self._groups if matches(layer, g.targets)), None)

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, Part]:
        group = self._of(layer)
        out, fan_in = shape
        made = {"weight_scale": Part(group.scales(shape))}
        if group.layout == "pack-quantized":
            words = -(-fan_in * group.format.bits // WORD)
            made |= {"weight_packed": Part(((out, words),)), "weight_shape": Part(((2,),))}
            if not group.format.symmetric:
                rows = -(-out * group.format.bits // WORD)
                made["weight_zero_point"] = Part(tuple((rows, *s[1:]) for s in group.scales(shape) if len(s) == 2))
        else:
            made |= {"weight": Part((shape,)), "weight_zero_point": Part(group.scales(shape), optional=True)}
        return made

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        group, form = self._of(layer), self._of(layer).format
        scales = get("weight_scale").float()
        scales = (
            by_rows(scales, group.block[0], shape[0])
            if group.block
            else scales.reshape(-1, scales.shape[-1] if scales.dim() == 2 else 1)
        )
        if scales.shape[0] == 1 != shape[0]:
            scales = scales.expand(shape[0], -1).contiguous()
        if group.layout != "pack-quantized":
            return QTensor(form, shape, {"codes": get("weight"), "scales": scales})
        unsigned = unpacked(get("weight_packed"), form.bits, shape[1])
        if form.symmetric:
            codes = (unsigned.short() - (1 << (form.bits - 1))).char()
            return QTensor(form, shape, {"codes": codes, "scales": scales})
        zeros = unpacked(get("weight_zero_point").T.contiguous(), form.bits, shape[0]).T.contiguous()
        return QTensor(form, shape, {"codes": unsigned, "scales": scales, "zeros": zeros})

    def ignores(self, name: str) -> bool:
        """Scales of a quantised KV cache: this engine's caches have scales of their own, or none."""
        return name.endswith(_CACHE)

    def _of(self, layer: str) -> _Group:
        group = self._group(layer)
        assert group is not None, layer
        return group


def unpacked(words: Any, bits: int, count: int) -> Any:
    """int32 [rows, words] -> uint8 [rows, count]: codes lie one after the other from the lowest bit of the first word on."""
    import torch

    per = WORD // bits
    shifts = torch.arange(0, WORD, bits, dtype=torch.int32)
    codes = (words[..., None] >> shifts) & ((1 << bits) - 1)
    return codes.reshape(words.shape[0], words.shape[1] * per)[:, :count].to(torch.uint8).contiguous()


def _group(name: str, said: Any, default: str) -> _Group:
    where = f"quantization_config: config_groups: {name}"
    if not isinstance(said, Mapping) or not isinstance(said.get("weights"), Mapping):
        raise UnsupportedModelError(f"{where}: weights: this version reads groups whose weights are quantised")
    w, layout = said["weights"], str(said.get("format") or default)
    if layout not in LAYOUTS:
        raise UnsupportedModelError(f"{where}: format: {layout!r:.80}: {_AWAY}")
    bits, strategy, symmetric = w.get("num_bits"), w.get("strategy"), w.get("symmetric", True)
    known = {"pack-quantized": ("int", (4, 8)), "int-quantized": ("int", (8,)), "float-quantized": ("float", (8,))}[layout]
    if w.get("type") != known[0] or bits not in known[1]:
        widths = " or ".join(map(str, known[1]))
        raise UnsupportedModelError(
            f"{where}: {layout} of {w.get('type')!r} in {bits!r} bits: this version reads {known[0]} in {widths}"
        )
    if w.get("actorder") not in (None, "static", "weight"):
        raise UnsupportedModelError(
            f"{where}: actorder: {w['actorder']!r:.40}: inputs in another order are not read by this version"
        )
    block = w.get("block_structure") if strategy == "block" else None
    group = {"tensor": 0, "channel": 0, "group": w.get("group_size"), "block": block[1] if block else None}.get(str(strategy))
    if not isinstance(group, int) or (layout != "pack-quantized" and not symmetric):
        raise UnsupportedModelError(
            f"{where}: weights by {strategy!r}, symmetric {symmetric}: not read by this version as {layout}"
        )
    form = WeightFormat(known[0], bits, group, bool(symmetric), act=_activations(where, said.get("input_activations")))  # type: ignore[arg-type]
    targets = said.get("targets") or []
    return _Group(tuple(map(str, targets)), layout, form, (block[0], block[1]) if block else None)


def _activations(where: str, said: Any) -> str:
    """What inputs are rounded to: `WeightFormat.act`."""
    if not said:
        return ""
    kinds = {("int", 8): "int8", ("float", 8): "float8_e4m3fn"}
    kind, strategy = kinds.get((said.get("type"), said.get("num_bits"))), said.get("strategy")
    if kind is None or not said.get("dynamic") or not said.get("symmetric", True) or strategy not in ("token", "group"):
        raise UnsupportedModelError(
            f"{where}: input_activations: this version rounds inputs to 8 bits by scales of their own, per token or group: "
            f"not {said.get('type')} in {said.get('num_bits')} bits per {strategy}, dynamic {bool(said.get('dynamic'))}"
        )
    return f"{kind}_per_group" if strategy == "group" else kind
