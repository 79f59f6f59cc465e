"""Checkpoints of NVIDIA ModelOpt: one algorithm for all layers, or one for each (MIXED_PRECISION). `weight_scale` and
`weight_scale_2`, the scale of scales, multiply. `input_scale` is the static scale of a layer's inputs. `pre_quant_scale` [in]
multiplies the inputs before that (AWQ, SmoothQuant). Layouts are those of version 0.47 (tests/quantization/modelopt).

W4A8_AWQ rounds twice: the value of a 4-bit code is a float8 with one scale. Layers hold that float8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from thalweg.errors import UnsupportedModelError
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import FLOATS, Format, Get, WeightPart
from thalweg.quantization.formats.floats import by_rows, float4, per_row, whole, wide
from thalweg.quantization.formats.patterns import globs, spellings
from thalweg.quantization.formats.settings import float8_cache, names, number, table, tables

BLOCK = 128
Shape = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Algo:
    """How an algorithm keeps a weight."""

    format: WeightFormat
    codes: Callable[[Shape], Shape]
    """Shape of `weight`."""
    stored: str
    """The dtype of `weight` in files."""
    scales: tuple[str, ...] = FLOATS


def _as_is(shape: Shape) -> Shape:
    return shape


def _pairs(shape: Shape) -> Shape:
    return shape[0], shape[1] // 2


def _pairs_of_rows(shape: Shape) -> Shape:
    return shape[0] // 2, shape[1]


FLOAT8, INT8 = WeightFormat("float", 8), WeightFormat("int", 8)
NVFP4 = WeightFormat("float", 4, 16, scale_dtype="float8_e4m3fn")
_BLOCKS = _Algo(replace(FLOAT8, group=BLOCK), _as_is, "float8_e4m3fn")
_MICRO = ("uint8", "float8_e8m0fnu")
ALGOS: Mapping[str, _Algo] = {
    "FP8": _Algo(replace(FLOAT8, act="float8_e4m3fn_static"), _as_is, "float8_e4m3fn"),
    "FP8_PER_CHANNEL_PER_TOKEN": _Algo(replace(FLOAT8, act="float8_e4m3fn"), _as_is, "float8_e4m3fn"),
    "FP8_PB_WO": _BLOCKS,
    "FP8_BLOCK_SCALES": _BLOCKS,
    "NVFP4": _Algo(replace(NVFP4, act="nvfp4"), _pairs, "uint8", ("float8_e4m3fn",)),
    "NVFP4_AWQ": _Algo(replace(NVFP4, act="nvfp4"), _pairs, "uint8", ("float8_e4m3fn",)),
    "W4A16_NVFP4": _Algo(NVFP4, _pairs, "uint8", ("float8_e4m3fn",)),
    "MXFP8": _Algo(WeightFormat("float", 8, 32, act="mxfp8_up"), _as_is, "float8_e4m3fn", _MICRO),
    "MXFP4": _Algo(WeightFormat("float", 4, 32), _pairs, "uint8", _MICRO),
    "W4A16_AWQ": _Algo(WeightFormat("int", 4, BLOCK), _pairs_of_rows, "uint8"),
    "W4A8_AWQ": _Algo(replace(FLOAT8, act="float8_e4m3fn_static"), _pairs_of_rows, "uint8"),
    "W8A8_SQ_PER_CHANNEL": _Algo(replace(INT8, act="int8_static"), _as_is, "int8"),
    "W8A16": _Algo(INT8, _as_is, "int8"),
}
"""MXFP4: files do not record whether inputs were rounded too. They keep their dtype."""
MIXED = "MIXED_PRECISION"


class ModelOpt(Format):
    name = "modelopt"
    marks = ("weight_scale",)

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        self._said = config = table(description, "quantization") or description
        self._layers = tables(config, "quantized_layers")
        self._dense = names(config, "exclude_modules") + names(config, "ignore")
        for settings in (config, *self._layers.values()):
            algo = str(settings.get("quant_algo") or "").upper()
            if algo and algo not in ALGOS and not (algo == MIXED and self._layers):
                raise UnsupportedModelError(
                    f"quantization_config: quant_algo: {algo!r:.80}: this version reads {', '.join(ALGOS)}, and {MIXED} with "
                    "quantized_layers"
                )

    def cache(self) -> str:
        """By an algorithm's name in hf_quant_config.json, as compressed-tensors has it in config.json."""
        named = str(self._said.get("kv_cache_quant_algo")).upper() == "FP8"
        return "fp8_e4m3" if named else float8_cache(table(self._said, "kv_cache_scheme"))

    def scheme(self, layer: str) -> WeightFormat | None:
        settings = self._settings(layer)
        if settings is None:
            return None
        form = self._algo(layer).format
        if form.kind == "int" and form.bits == 4:
            form = replace(form, group=self._group(settings))
        if self.stored is None:
            return form
        if form.own_scale and self.entry(f"{layer}.input_scale") is None:
            form = replace(form, act=form.act.removesuffix("_static") if form.act != "nvfp4" else "")
        return replace(form, smoothed=True) if self.entry(f"{layer}.pre_quant_scale") is not None else form

    def parts(self, layer: str, shape: Shape) -> Mapping[str, WeightPart]:
        algo, form, name = self._algo(layer), self.scheme(layer), self._name(layer)
        assert form is not None
        out, fan_in = shape
        result = {"weight": WeightPart((algo.codes(shape),), dtypes=(algo.stored,))}
        scales: tuple[tuple[int, ...], ...] = whole(out)
        if algo is _BLOCKS:
            rows, columns = -(-out // BLOCK), -(-fan_in // BLOCK)
            one = ((), (1,)) if rows == columns == 1 else ()
            scales = ((rows, 1, columns, 1), (rows, columns), *one)
        elif form.group > 0 or name == "W4A8_AWQ":
            scales = ((out, -(-fan_in // (form.group or self._group(self._settings(layer) or {})))),)
        result["weight_scale"] = WeightPart(scales, dtypes=algo.scales)
        if form.scale_dtype or name == "W4A8_AWQ":
            result["weight_scale_2"] = WeightPart(((), (1,)), dtypes=FLOATS)
        return result | {
            "input_scale": WeightPart(((), (1,)), optional=not form.own_scale, dtypes=FLOATS),
            "pre_quant_scale": WeightPart(((fan_in,),), optional=not form.smoothed, dtypes=FLOATS),
        }

    def read(self, layer: str, shape: Shape, get: Get) -> QTensor:
        form, algo = self.scheme(layer), self._algo(layer)
        assert form is not None
        out, codes, scales = shape[0], get("weight"), get("weight_scale")
        data: dict[str, Any] = {}
        if form.scale_dtype:
            data = {"codes": float4(codes), "scales": scales, "scale": per_row(get("weight_scale_2").float(), out)}
        elif algo is _BLOCKS:
            blocks = scales.float().reshape(-(-out // BLOCK), -(-shape[1] // BLOCK))
            data = {"codes": codes, "scales": by_rows(blocks, BLOCK, out)}
        elif self._name(layer) == "W4A8_AWQ":
            data = _rounded_twice(pairs_of_rows(codes), scales.float(), get("weight_scale_2").float(), shape)
        elif form.kind == "int" and form.bits == 4:
            data = {"codes": pairs_of_rows(codes), "scales": scales.float()}
        elif form.group > 0:
            data = {"codes": float4(codes) if form.bits == 4 else codes, "scales": wide(scales, layer)}
        else:
            data = {"codes": codes, "scales": per_row(scales.float(), out)}
        if form.own_scale:
            data["input_scale"] = get("input_scale").float().reshape(1, 1)
        if form.smoothed:
            data["in_scale"] = get("pre_quant_scale").float()[None]
        return QTensor(form, shape, data)

    def _settings(self, layer: str) -> Mapping[str, Any] | None:
        """Of this layer's algorithm; None: it is dense."""
        if globs(layer, self._dense):
            return None
        if self._layers:
            return next((self._layers[name] for name in spellings(layer) if name in self._layers), None)
        return self._said if self._said.get("quant_algo") else None

    def _name(self, layer: str) -> str:
        settings = self._settings(layer)
        assert settings is not None, layer
        return str(settings["quant_algo"]).upper()

    def _algo(self, layer: str) -> _Algo:
        return ALGOS[self._name(layer)]

    def _group(self, settings: Mapping[str, Any]) -> int:
        """Inputs that share a scale, of integers."""
        groups = tables(self._said, "config_groups").values()
        config = [settings.get("group_size"), *(table(g, "weights").get("group_size") for g in groups)]
        return next((number(n, "group_size") for n in config if n), BLOCK)


def pairs_of_rows(packed: Any) -> Any:
    """Bytes [out / 2, in], of two rows the even one in the lower half -> int8 [out, in]."""
    import torch

    raw = torch.stack([packed & 15, packed >> 4], 1).flatten(0, 1).to(torch.int8)
    return raw - 16 * (raw >> 3)


def _rounded_twice(codes: Any, scales: Any, outer: Any, shape: Shape) -> dict[str, Any]:
    """Codes [out, in], their scales [out, groups], and the scale of the float8 that they become."""
    import torch

    size = -(-shape[1] // scales.shape[1])
    values = codes.float() * scales.repeat_interleave(size, 1)[:, : shape[1]]
    top = torch.finfo(torch.float8_e4m3fn).max
    held = (values / outer.reshape(1, 1)).clamp(-top, top).to(torch.float8_e4m3fn)
    return {"codes": held, "scales": per_row(outer, shape[0])}
