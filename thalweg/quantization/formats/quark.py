"""Checkpoints of AMD Quark: a configuration for all layers, and exceptions by patterns or classes. Supported: 8-bit floats and
integers with a scale of the tensor or of each output, 4- and 6-bit floats in groups (OCP MX, NVFP4), and int4 in groups.

int4 is laid out as in AWQ: `weight` int32 [in, out / 8], with the order of a word's outputs in `pack_method`. Without zero
points a code is a signed number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.errors import UnsupportedModelError
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import FLOATS, Format, Get, WeightPart
from thalweg.quantization.formats.floats import E2M3, E3M2, float4, float6, per_row, whole, wide
from thalweg.quantization.formats.patterns import globs, matches
from thalweg.quantization.formats.settings import names, table, tables

FLOAT8 = "float8_e4m3fn"
PER_WORD, REORDER = 8, (0, 4, 1, 5, 2, 6, 3, 7)
"""Outputs in a word of int4, and their order with pack_method "reorder"."""
MICRO = {"fp4": 4, "fp6_e2m3": 6, "fp6_e3m2": 6}
"""Bits of floats that have a power of two for each 32."""
_READ = (
    "this version reads fp8_e4m3 and int8 (per_tensor, per_channel), fp4 and fp6 in groups of 32 (e8m0), fp4 in groups of 16 "
    "under fp8_e4m3, and int4 and uint4 in groups"
)


class Quark(Format):
    name = "quark"
    marks = ("weight_scale",)

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        export = table(description, "export")
        order = export.get("pack_method", "reorder")
        if order not in ("reorder", "order"):
            raise UnsupportedModelError(
                f"quantization_config: export: pack_method: must be reorder or order, not {order!r:.80}"
            )
        self._order = REORDER if order == "reorder" else tuple(range(PER_WORD))
        cache = names(export, "kv_cache_group")
        self._dense = names(description, "exclude")
        types = tables(description, "layer_type_quant_config")
        everywhere = next((c for name, c in types.items() if name.rpartition(".")[2].strip("'>") == "Linear"), None)
        everywhere = everywhere or table(description, "global_quant_config")
        layers = tables(description, "layer_quant_config")
        self._layers = {name: _form(f"layer_quant_config: {name}", c, name in cache) for name, c in layers.items()}
        self._everywhere = _form("global_quant_config", everywhere, False) if everywhere else None

    def scheme(self, layer: str) -> WeightFormat | None:
        found = self._kind(layer)
        return None if found is None else found[1]

    def _kind(self, layer: str) -> tuple[str, WeightFormat] | None:
        """Quark's name for the format of the layer's weight, and the format in memory."""
        expressions = [rule for rule in self._dense if rule.startswith("re:")]
        if matches(layer, expressions) or globs(layer, (rule for rule in self._dense if rule not in expressions)):
            return None
        named = (found for pattern, found in self._layers.items() if globs(layer, (pattern,)))
        return next(named, self._everywhere)

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        kind, form = self._of(layer)
        out, fan_in = shape
        result: dict[str, WeightPart] = {}
        if kind in ("int4", "uint4"):
            words, groups = -(-out // PER_WORD), -(-fan_in // form.group)
            result = {
                "weight": WeightPart(((fan_in, words),), dtypes=("int32",)),
                "weight_scale": WeightPart(((groups, out),), dtypes=FLOATS),
            }
            result["weight_zero_point"] = WeightPart(((groups, words),), optional=form.symmetric, dtypes=("int32",))
        elif kind in MICRO:
            groups = -(-fan_in // form.group)
            result["weight"] = WeightPart(((out, fan_in * MICRO[kind] // 8),), dtypes=("uint8",))
            stored = (form.scale_dtype,) if form.scale_dtype else ("uint8", "float8_e8m0fnu")
            result["weight_scale"] = WeightPart(((out, groups),), dtypes=stored)
            if form.scale_dtype:
                result["weight_scale_2"] = WeightPart(((), (1,)), dtypes=FLOATS)
        else:
            result = {"weight": WeightPart((shape,), dtypes=(kind,)), "weight_scale": WeightPart(whole(out), dtypes=FLOATS)}
        single = WeightPart(((), (1,)), optional=not form.own_scale, dtypes=FLOATS)
        zero = WeightPart(((), (1,), (out,), (out, 1)), optional=True)
        result["input_scale_2" if form.act == "nvfp4" else "input_scale"] = single
        return {"weight_zero_point": zero, "input_zero_point": zero} | result

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        kind, form = self._of(layer)
        codes, scales = get("weight"), get("weight_scale")
        data: dict[str, Any]
        if kind in ("int4", "uint4"):
            data = {"codes": self._unpack(codes, shape[0]).T.contiguous(), "scales": scales.float().T.contiguous()}
            if form.symmetric:
                signed = data["codes"].char()
                data["codes"] = signed - 16 * (signed >> 3)
            else:
                data["zeros"] = self._unpack(get("weight_zero_point"), shape[0]).T.contiguous()
        elif kind in MICRO:
            magnitudes = E2M3 if kind == "fp6_e2m3" else E3M2
            data = {"codes": float4(codes) if kind == "fp4" else float6(codes, magnitudes)}
            data["scales"] = scales if form.scale_dtype else wide(scales, layer)
            if form.scale_dtype:
                data["scale"] = per_row(get("weight_scale_2").float(), shape[0])
        else:
            data = {"codes": codes, "scales": per_row(scales.float(), shape[0])}
        if form.own_scale:
            data["input_scale"] = get("input_scale_2" if form.act == "nvfp4" else "input_scale").float().reshape(1, 1)
        return QTensor(form, shape, data)

    def _unpack(self, words: Any, count: int) -> Any:
        """int32 [rows, words] -> uint8 [rows, count]."""
        import torch

        shifts = 4 * torch.tensor(self._order, dtype=torch.int32)
        return (words[..., None] >> shifts & 15).flatten(1)[:, :count].to(torch.uint8)

    def _of(self, layer: str) -> tuple[str, WeightFormat]:
        found = self._kind(layer)
        assert found is not None, layer
        return found


def _form(where: str, settings: Any, cache: bool) -> tuple[str, WeightFormat] | None:
    """Quark's name for the format of weights with these settings, and the format in memory; None: they are dense. cache: are
    outputs kept in a KV cache?"""
    where = f"quantization_config: {where}"
    for key in ("bias", *(() if cache else ("output_tensors",))):
        if settings.get(key):
            raise UnsupportedModelError(f"{where}: {key}: this version reads quantised weights, and rounds inputs of layers")
    inputs, weight = settings.get("input_tensors"), settings.get("weight")
    if not weight:
        if inputs:
            raise UnsupportedModelError(f"{where}: weight: inputs are rounded only where weights are quantised: {_READ}")
        return None
    if isinstance(weight, list):
        return _two_levels(where, [table({"weight": w}, "weight") for w in weight], inputs)
    weight = table(settings, "weight")
    dtype, scheme, size = str(weight.get("dtype")), weight.get("qscheme"), weight.get("group_size")
    act = _act(f"{where}: input_tensors", inputs)
    symmetric = weight.get("symmetric") is not False
    if dtype in ("fp8_e4m3", "int8") and scheme in ("per_tensor", "per_channel") and symmetric:
        kind = FLOAT8 if dtype == "fp8_e4m3" else "int8"
        return kind, WeightFormat("float" if dtype == "fp8_e4m3" else "int", 8, act=act)
    if dtype in MICRO and scheme == "per_group" and size == 32 and weight.get("scale_format") == "e8m0":
        return dtype, WeightFormat("float", 4 if dtype == "fp4" else 8, 32, act=act)
    if dtype in ("int4", "uint4") and scheme == "per_group" and isinstance(size, int) and size > 0:
        return dtype, WeightFormat("int", 4, size, symmetric=dtype == "int4" and symmetric, act=act)
    raise UnsupportedModelError(f"{where}: weight: {dtype!r:.40} {scheme!r:.40}, group_size {size!r:.20}: {_READ}")


def _two_levels(where: str, weight: list[Any], inputs: Any) -> tuple[str, WeightFormat]:
    first, second = weight if len(weight) == 2 else ({}, {})
    nvfp4 = (first.get("dtype"), first.get("group_size"), second.get("dtype")) == ("fp4", 16, "fp8_e4m3")
    if not nvfp4:
        kinds = " under ".join(str(w.get("dtype")) for w in weight)
        raise UnsupportedModelError(
            f"{where}: weight: {kinds}: {_READ}. How int4 under fp8 lies in files is not documented: export with one level"
        )
    both = (
        isinstance(inputs, list)
        and len(inputs) == 2
        and isinstance(inputs[0], Mapping)
        and inputs[0].get("dtype") == "fp4"
        and inputs[0].get("is_dynamic")
    )
    if inputs and not both:
        raise UnsupportedModelError(f"{where}: input_tensors: with such weights inputs are rounded alike, or not at all")
    return "fp4", WeightFormat("float", 4, 16, scale_dtype=FLOAT8, act="nvfp4" if both else "")


def _act(where: str, settings: Any) -> str:
    if not settings:
        return ""
    if isinstance(settings, Mapping):
        dtype, scheme, dynamic = settings.get("dtype"), settings.get("qscheme"), bool(settings.get("is_dynamic"))
        kind = {"fp8_e4m3": FLOAT8, "int8": "int8"}.get(str(dtype))
        if scheme == "per_group" and dynamic and settings.get("group_size") == 32 and settings.get("scale_format") == "e8m0":
            if dtype in ("fp4", "fp8_e4m3"):
                return "mxfp4_even" if dtype == "fp4" else "mxfp8_even"
        elif kind and settings.get("symmetric") is not False:
            if dynamic and scheme in ("per_tensor", "per_channel"):
                return kind
            if not dynamic and scheme == "per_tensor":
                return f"{kind}_static"
    raise UnsupportedModelError(
        f"{where}: this version rounds inputs to fp8_e4m3 and int8 (symmetric; dynamic, or per_tensor), and to fp4 and fp8 in "
        f"groups of 32 (e8m0, dynamic), not {settings!r:.200}"
    )
