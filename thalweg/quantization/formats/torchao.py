"""torchao in safetensors, which it writes since 0.15: `_weight_qdata`, `_weight_scale` and `_weight_zero_point`. Read here:
int8 and float8 with a scale per output or for the whole tensor, int8 also by groups. Inputs are as they are, or rounded row by
row.

Older files are pickles, which are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import Format, Get, WeightPart
from thalweg.quantization.formats.patterns import contains, matches
from thalweg.quantization.formats.settings import names, number, table, tables

INT8 = ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig")
FP8 = ("Float8WeightOnlyConfig", "Float8DynamicActivationFloat8WeightConfig")
BY_NAME = ("FqnToConfig", "ModuleFqnToConfig")
_ANSWER = "use the model's bfloat16 checkpoint with --quantization, or save it with one of those"


class TorchAo(Format):
    name = "torchao"
    marks = ("_weight_qdata",)

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        kinds = description.get("quant_type")
        settings = table(kinds, "default") if isinstance(kinds, Mapping) else None
        if not settings:
            raise UnsupportedModelError(
                f"quantization_config: quant_type: must be the settings that torchao 0.15 and later write (default: _type, "
                f"_data), not {kinds!r:.60}: save the model again with them"
            )
        self._default: WeightFormat | None = None
        self._by_name: dict[str, WeightFormat | None] = {}
        if settings.get("_type") in BY_NAME:
            inner = table(settings, "_data")
            key = next((k for k in inner if k.endswith("fqn_to_config")), "")
            for name, each in tables(inner, key).items():
                self._by_name[name] = _weight_format(each) if each else None
            self._default = self._by_name.pop("_default", None)
        else:
            self._default = _weight_format(settings)
        self._dense = names(description, "modules_to_not_convert", default=("lm_head",))

    def scheme(self, layer: str) -> WeightFormat | None:
        if contains(layer, self._dense):
            return None
        return next((form for name, form in self._by_name.items() if matches(layer, [name])), self._default)

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        form = self._of(layer)
        scales = ((shape[0], shape[1] // form.group),) if form.group else ((shape[0], 1), (1, 1), (1,), ())
        result = {"_weight_qdata": WeightPart((shape,)), "_weight_scale": WeightPart(scales)}
        return result if form.kind == "float" else result | {"_weight_zero_point": WeightPart(scales, optional=True)}

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        form = self._of(layer)
        if self.entry(f"{layer}._weight_zero_point") is not None and bool(get("_weight_zero_point").any()):
            raise CheckpointError(f"{layer}._weight_zero_point: this version only reads symmetric int8 of torchao")
        scales = get("_weight_scale").float()
        scales = scales.reshape(-1, scales.shape[-1] if scales.dim() == 2 else 1)
        return QTensor(form, shape, {"codes": get("_weight_qdata"), "scales": scales.expand(shape[0], -1).contiguous()})

    def _of(self, layer: str) -> WeightFormat:
        form = self.scheme(layer)
        assert form is not None, layer
        return form


def _weight_format(settings: Mapping[str, Any]) -> WeightFormat:
    """`said`: a configuration as torchao writes it: {_type, _version, _data}."""
    kind, data = str(settings.get("_type")), table(settings, "_data")
    where = f"quantization_config: quant_type: {kind:.60}"
    if kind not in (*INT8, *FP8):
        raise UnsupportedModelError(f"{where}: this version reads {', '.join((*INT8, *FP8))}: {_ANSWER}")
    if number(settings.get("_version", 1), "_version", 0) < 2:
        raise UnsupportedModelError(
            f"{where}: of version {settings.get('_version', 1)}, which is a pickle: save it with torchao 0.15 or later"
        )
    dtype = str(_plain(data.get("weight_dtype") or "float8_e4m3fn"))
    if kind in FP8 and not dtype.endswith("float8_e4m3fn"):
        raise UnsupportedModelError(f"{where}: weight_dtype: this version reads float8_e4m3fn, not {dtype!r:.40}")
    wide, group = _granularity(data.get("granularity"), where)
    group = number(data.get("group_size") or group, "group_size", 0)
    if kind in (INT8[0], FP8[0]):
        return WeightFormat("int" if kind in INT8 else "float", 8, group)
    mapping = _plain(data.get("act_mapping_type"))
    if group or wide or mapping not in (None, "SYMMETRIC") or data.get("weight_only_decode"):
        raise UnsupportedModelError(
            f"{where}: this version rounds inputs row by row, around zero: use granularity PerRow and SYMMETRIC inputs"
        )
    return WeightFormat("int", 8, act="int8") if kind in INT8 else WeightFormat("float", 8, act="float8_e4m3fn")


def _granularity(settings: Any, where: str) -> tuple[bool, int]:
    """(Is a scale that of a whole tensor?, inputs of a group or 0)."""
    every = settings if isinstance(settings, list) else [settings]
    wide, group = False, 0
    for each in (table({"granularity": g}, "granularity") for g in every if g):
        kind = each.get("_type")
        if kind == "PerGroup":
            group = number(table(each, "_data").get("group_size"), "granularity: group_size")
        elif kind not in ("PerRow", "PerTensor"):
            raise UnsupportedModelError(
                f"{where}: granularity: this version reads PerRow, PerTensor and PerGroup, not {kind!r:.40}"
            )
        wide |= kind == "PerTensor"
    return wide, group


def _plain(settings: Any) -> Any:
    return settings.get("_data") if isinstance(settings, Mapping) else settings
