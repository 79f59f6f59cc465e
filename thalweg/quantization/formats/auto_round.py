"""AutoRound (Intel Neural Compressor): one description over several packings, which other formats here read.

| packing_format | as |
|---|---|
| auto_round:auto_gptq, auto_gptq | GPTQ, version 1 |
| auto_round, auto_round:gptq_v2 | GPTQ, version 2 |
| auto_round:auto_awq, auto_awq | AWQ |
| auto_round:fp8 | float8 by blocks |

Layers may have separate settings (`extra_config`), by name, by the name's end, or by a regular expression.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from thalweg.errors import UnsupportedModelError
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import Format, Get, WeightPart
from thalweg.quantization.formats import awq, gptq
from thalweg.quantization.formats.fp8 import Fp8
from thalweg.quantization.formats.patterns import SPECIAL, searches, spellings
from thalweg.quantization.formats.settings import names, tables

GPTQ = {"auto_gptq": 1, "gptq": 1, "auto": 1, "": 0, "gptq_v2": 0}
"""Packing, without "auto_round:" -> the offset added to stored zero points."""
AWQ = ("auto_awq", "awq")
FP8 = ("fp8", "fp8_block")
BLOCKS = ("block_name_to_quantize", "to_quant_block_names")
BITS = (2, 3, 4, 5, 6, 7, 8)
DENSE_BITS = 16


@dataclass(frozen=True, slots=True)
class Settings:
    bits: int
    group: int
    symmetric: bool


class AutoRound(Format):
    name = "auto-round"
    marks = ("qweight", "weight_scale_inv")

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        settings = str(description.get("packing_format") or "auto_round:auto_gptq")
        self._packing = settings.removeprefix("auto_round").removeprefix(":")
        if self._packing not in (*GPTQ, *AWQ, *FP8):
            raise UnsupportedModelError(
                f"quantization_config: packing_format: {settings!r:.60}: this version reads auto_round, auto_round:auto_gptq, "
                f'auto_round:auto_awq and auto_round:fp8. AutoRound saves other schemes with format="llm_compressor"'
            )
        self._extra = tables(description, "extra_config")
        self._expressions = [key for key in self._extra if SPECIAL & set(key)]
        self._found: dict[str, Mapping[str, Any] | None] = {}
        said_blocks = {k: v.split(",") if isinstance(v := description.get(k), str) else v for k in BLOCKS}
        self._blocks = tuple(filter(None, (n.strip() for n in names(said_blocks, *BLOCKS))))
        self._blockwise = Fp8({**description, "stored": None}) if self._packing in FP8 else None
        if not self._blockwise:
            self._settings({}, "")
            for key, more in self._extra.items():
                self._settings(more, f" extra_config: {key}:")

    def _settings(self, more: Mapping[str, Any], where: str) -> Settings | None:
        settings = {**self.description, **more}
        bits, kind = settings.get("bits"), settings.get("data_type") or "int"
        if isinstance(bits, int) and bits >= DENSE_BITS:
            return None
        if kind != "int" or not isinstance(bits, int) or bits not in (BITS if self._packing in GPTQ else (awq.BITS,)):
            raise UnsupportedModelError(
                f"quantization_config:{where} bits: {bits!r:.20} of {kind!r:.40} are not read by this version in packing "
                f"{self._packing or 'auto_round'!r}"
            )
        return Settings(bits, awq.group_size(settings.get("group_size", 128)), bool(settings.get("sym", True)))

    def _own(self, layer: str) -> Mapping[str, Any] | None:
        """Of extra_config: the layer's name, then the end of it, then an expression. None: no entry matches it."""
        if layer not in self._found:
            ends = [name.split(".")[-n:] for n in range(layer.count(".") + 3, 0, -1) for name in spellings(layer, "qkv")]
            ways = (self._extra.get(".".join(words)) for words in ends)
            by_expression = (self._extra[key] for key in self._expressions if searches(layer, [key]))
            self._found[layer] = next(filter(None, chain(ways, by_expression)), None)
        return self._found[layer]

    def _of(self, layer: str) -> Settings | None:
        own = self._own(layer)
        inside = any(n == b or n.startswith(f"{b}.") for n in spellings(layer) for b in self._blocks)
        if own is None and not (inside or (not self._blocks and layer not in gptq.HEADS)):
            return None
        return self._settings(own or {}, "")

    def scheme(self, layer: str) -> WeightFormat | None:
        if self._blockwise:
            own = self._own(layer)
            return None if own and own.get("bits", 8) >= DENSE_BITS else self._blockwise.scheme(layer)
        settings = self._of(layer)
        if settings is None:
            return None
        return awq.weight_format(settings.group, settings.symmetric) if self._packing in AWQ else self._gptq(settings).form

    def _gptq(self, settings: Settings) -> gptq.Packing:
        """Its own reader adds 1 without wrapping."""
        return gptq.Packing(settings.bits, settings.group, settings.symmetric, offset=GPTQ[self._packing], wraps=False)

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        if self._blockwise:
            return self._blockwise.parts(layer, shape)
        settings = self._of(layer)
        assert settings is not None, layer
        if self._packing in AWQ:
            return awq.parts(shape, settings.group, optional=settings.symmetric)
        return gptq.parts(shape, self._gptq(settings))

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        if self._blockwise:
            return self._blockwise.read(layer, shape, get)
        settings = self._of(layer)
        assert settings is not None, layer
        if self._packing in AWQ:
            zeros = not settings.symmetric or self.entry(f"{layer}.qzeros") is not None
            return awq.read(layer, shape, get, awq.weight_format(settings.group, settings.symmetric), zeros)
        return gptq.read(layer, shape, get, self._gptq(settings), self.entry(f"{layer}.g_idx") is not None)
