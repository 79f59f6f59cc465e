"""GPTQ (AutoGPTQ, GPTQModel, AutoRound): `qweight` int32 [in * bits / 32, out], `qzeros` int32 [in / group, out * bits / 32],
`scales` float16 [in / group, out], `g_idx` int32 [in], the group of each input. weight = (code - zero) * scale. Codes are a
dense stream of bits, those of 3 bits too.

Files of version 1 keep zero - 1. Its writer stored a zero point of 0 as -1, which spilled into neighbours: version 2 came of
that. Both are read as their libraries read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import Format, Get, WeightPart
from thalweg.quantization.formats.awq import group_size
from thalweg.quantization.formats.patterns import contains, dynamic_override
from thalweg.quantization.formats.settings import names, table, tables
from thalweg.quantization.formats.words import center_codes, stream, words

if TYPE_CHECKING:
    from torch import Tensor

BITS = (2, 3, 4, 8)
VERSIONS = {"gptq": 1, "gptq_v2": 2}
"""`checkpoint_format` -> version. Without a word: 1."""
HEADS = ("lm_head", "embed_out", "output")
"""Last words of names of output matrices, which are quantised only where `lm_head` says so."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Of one layer."""

    bits: int
    group: int
    """0: a row."""
    symmetric: bool
    ordered: bool = False
    """Groups in the order of inputs that act-order chose."""
    offset: int = 1
    """The offset added to stored zero points."""
    wraps: bool = True
    """Is a zero point of 2**bits read as 0? AutoGPTQ does so, but for 3 bits."""

    @property
    def form(self) -> WeightFormat:
        """Codes need between 2 and 8 bits. They are held in 4 or in 8."""
        return WeightFormat("int", 4 if self.bits <= 4 else 8, self.group, self.symmetric, reordered=self.ordered)


class Gptq(Format):
    name = "gptq"
    marks = ("qweight",)

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        self._said = {**table(description, "meta"), **description}
        layout = str(self._said.get("checkpoint_format") or self._said.get("format") or "gptq").lower()
        if layout not in VERSIONS or self._said.get("is_marlin_format"):
            raise UnsupportedModelError(
                f"quantization_config: checkpoint_format: this version reads {', '.join(VERSIONS)}, not {layout!r:.40}: files "
                "packed for one kernel hold no other's order; take the checkpoint they were made of, or save it as gptq"
            )
        for key, plain in (("pack_dtype", "int32"), ("rotation", None), ("adapter", None)):
            if (settings := self._said.get(key)) and settings != plain:
                raise UnsupportedModelError(
                    f"quantization_config: {key}: {settings!r:.60} is not read by this version; it must be absent"
                )
        self._version = VERSIONS[layout]
        self._dynamic = tables(self._said, "dynamic")
        self._inside = _flat(self._said)
        self._found: dict[str, Packing | None] = {}
        self._packing(self._said, "")
        for rule, more in self._dynamic.items():
            if not rule.startswith("-:"):
                self._packing({**self._said, **more}, f" dynamic: {rule}:")

    def _packing(self, settings: Mapping[str, Any], where: str) -> Packing:
        bits = settings.get("bits")
        if not isinstance(bits, int) or bits not in BITS:
            raise UnsupportedModelError(
                f"quantization_config:{where} bits: this version reads GPTQ in 2, 3, 4 and 8, not {bits!r:.40}"
            )
        group = group_size(settings.get("group_size", 128))
        ordered = bool(settings.get("desc_act")) and group > 0 and not settings.get("static_groups")
        return Packing(bits, group, bool(settings.get("sym", True)), ordered, 2 - self._version, bits != 3)

    def _of(self, layer: str) -> Packing | None:
        if layer not in self._found:
            self._found[layer] = self._decide_packing(layer)
        return self._found[layer]

    def _decide_packing(self, layer: str) -> Packing | None:
        more = dynamic_override(layer, self._dynamic)
        head = layer.rpartition(".")[2] in HEADS
        left_out = not (self._said.get("lm_head") if head else contains(layer, self._inside) or not self._inside)
        if more is None or (left_out and not more):
            return None
        result = self._packing({**self._said, **more}, "")
        return replace(result, ordered=result.ordered and not self._is_sorted(layer, result.group))

    def _is_sorted(self, layer: str, group: int) -> bool:
        """Are the groups of this layer in the order of its inputs, whatever the settings say?"""
        order = self.value(f"{layer}.g_idx")
        return order is not None and order.tolist() == [i // group for i in range(len(order))]

    def scheme(self, layer: str) -> WeightFormat | None:
        packing = self._of(layer)
        return None if packing is None else packing.form

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        packing = self._of(layer)
        assert packing is not None, layer
        return parts(shape, packing)

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        packing = self._of(layer)
        assert packing is not None, layer
        return read(layer, shape, get, packing, self.entry(f"{layer}.g_idx") is not None)

    def ignores(self, name: str) -> bool:
        """Biases of zeros, which AutoGPTQ once wrote for layers without one."""
        layer, _, last = name.rpartition(".")
        if last != "bias" or self.entry(f"{layer}.qweight") is None:
            return False
        held = self.value(name)
        return held is not None and not held.any()


def _flat(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """modules_in_block_to_quantize: names, or lists of names that are quantised together."""
    key = "modules_in_block_to_quantize"
    found = settings.get(key)
    if not isinstance(found, list):
        return names(settings, key)
    each = (n if isinstance(n, list) else [n] for n in found)
    return names({key: [name for group in each for name in group]}, key)


def parts(shape: tuple[int, int], packing: Packing) -> Mapping[str, WeightPart]:
    outputs, inputs = shape
    groups = -(-inputs // packing.group) if packing.group else 1
    return {
        "qweight": WeightPart(((words(inputs, packing.bits), outputs),)),
        "qzeros": WeightPart(((groups, words(outputs, packing.bits)),), optional=packing.symmetric),
        "scales": WeightPart(((groups, outputs),)),
        "g_idx": WeightPart(((inputs,),), optional=not packing.ordered),
    }


def read(layer: str, shape: tuple[int, int], get: Get, packing: Packing, indexed: bool) -> QTensor:
    """indexed: has the file a g_idx?"""
    outputs, inputs = shape
    codes = stream(get("qweight").T.contiguous(), packing.bits, inputs)
    data = {"codes": codes, "scales": get("scales").T.float().contiguous()}
    if packing.symmetric:
        data["codes"] = center_codes(codes, _zeros(layer, get, packing, outputs, optional=True), packing.bits, layer)
    else:
        zeros = _zeros(layer, get, packing, outputs)
        assert zeros is not None
        data["zeros"] = zeros
    if indexed and packing.group:
        data |= _in_order(layer, get("g_idx"), data["codes"], packing)
    return QTensor(packing.form, shape, data)


def _zeros(layer: str, get: Get, packing: Packing, outputs: int, optional: bool = False) -> Tensor | None:
    """uint8 [outputs, groups]."""
    import torch

    try:
        stored = get("qzeros")
    except KeyError:
        if optional:
            return None
        raise
    zeros = stream(stored, packing.bits, outputs).to(torch.int16) + packing.offset
    if packing.offset and packing.wraps:
        zeros &= (1 << packing.bits) - 1
    if zeros.amax() > 255:
        raise CheckpointError(f"{layer}.qzeros: a zero point of {zeros.amax():d} is beyond 8 bits: the file is damaged")
    return zeros.T.to(torch.uint8).contiguous()


def _in_order(layer: str, groups: Tensor, codes: Tensor, packing: Packing) -> dict[str, Tensor]:
    """Inputs sorted by their groups. Those of a group keep their order among themselves."""
    import torch

    want = torch.arange(len(groups)) // packing.group
    if not packing.ordered:
        if not torch.equal(groups.long(), want):
            raise CheckpointError(
                f"{layer}.g_idx: its inputs are in another order, and quantization_config says that desc_act is false: fix the "
                "setting or the file"
            )
        return {}
    order = groups.argsort(stable=True)
    if not torch.equal(groups[order].long(), want):
        raise CheckpointError(f"{layer}.g_idx: its groups are not of {packing.group} inputs each, as group_size says")
    return {"codes": codes[:, order].contiguous(), "perm": order.to(torch.int32)[None]}
