"""Checkpoints of the compressed-tensors library (LLM Compressor): groups of layers, each with a format of weights.
Integers of 2 to 8 bits are packed in words ("pack-quantized") or stored a byte each ("int-quantized"). Floats have 8 bits
("float-quantized", "mxfp8-quantized"), 6 ("mxfp6-pack-quantized") or 4 ("mxfp4-pack-quantized", "nvfp4-pack-quantized").

Layouts are those of version 0.20 of the library (its `compressors`), and tests compare every one with it. Up to 0.17 codes of
3, 5, 6 and 7 bits did not cross words. The width of a tensor decides, and the version where the width does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.hal.weights import QTensor, WeightFormat
from thalweg.quantization.format import FLOATS, Format, Get, WeightPart
from thalweg.quantization.formats import activations
from thalweg.quantization.formats.floats import E2M3, by_rows, float4, float6, per_row, whole, wide
from thalweg.quantization.formats.patterns import CLASSES, matches
from thalweg.quantization.formats.settings import float8_cache, names, number, table
from thalweg.quantization.formats.words import WORD, stream, words

INTEGERS, BYTES, POWERS = ("int8",), ("uint8",), ("uint8", "float8_e8m0fnu")
NVFP4 = "nvfp4-pack-quantized"
STORED: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "pack-quantized": ("int", (2, 3, 4, 5, 6, 7, 8)),
    "int-quantized": ("int", (2, 3, 4, 5, 6, 7, 8)),
    "float-quantized": ("float", (8,)),
    "mxfp8-quantized": ("float", (8,)),
    "mxfp6-pack-quantized": ("float", (6,)),
    "mxfp4-pack-quantized": ("float", (4,)),
    NVFP4: ("float", (4,)),
}
"""Layout -> the types it is read with: kind and bits."""
_AWAY = "this version reads " + ", ".join(STORED)
_DENSE = (
    "load the checkpoint in transformers with CompressedTensorsConfig(run_compressed=False), save it with save_pretrained, "
    "and serve that"
)


@dataclass(frozen=True, slots=True)
class _Group:
    """A group of layers with the same format."""

    targets: tuple[str, ...]
    layout: str = ""
    bits: int = 16
    """Of a code in the files."""
    format: WeightFormat | None = None
    """None: these layers are dense."""
    block: tuple[int, int] | None = None
    """Rows and columns that share a scale, where both are several."""
    orders: bool = False
    """May layers say which group each of their inputs is in?"""

    def scales(self, shape: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
        """Shapes that the scales of such a weight may have."""
        assert self.format is not None
        if self.block is not None:
            return ((-(-shape[0] // self.block[0]), -(-shape[1] // self.block[1])),)
        if self.format.group:
            return ((shape[0], -(-shape[1] // self.format.group)),)
        return whole(shape[0])


class CompressedTensors(Format):
    name = "compressed-tensors"
    marks = ("weight_scale",)

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        groups = table(description, "config_groups")
        self._cache = table(description, "kv_cache_scheme")
        if not groups and not self._cache:
            raise UnsupportedModelError("quantization_config: config_groups: must name the groups of quantised layers")
        default = str(description.get("format") or "")
        sparse = table(description, "sparsity_config")
        if sparse.get("format", "dense") != "dense" or default.startswith(("sparse", "marlin")):
            raise UnsupportedModelError(
                "quantization_config: sparsity_config: weights with zeros left out "
                f"({sparse.get('format') or default}) are not read by this version: {_DENSE}"
            )
        if description.get("transform_config"):
            raise UnsupportedModelError(
                f"quantization_config: transform_config: rotated inputs are not read by this version: {_DENSE}"
            )
        self._groups = [_group(name, g, default) for name, g in groups.items()]
        self._ignore = names(description, "ignore")
        self._padded = _version(description.get("version")) < (0, 18)

    def cache(self) -> str:
        return float8_cache(self._cache)

    def scheme(self, layer: str) -> WeightFormat | None:
        group = self._group(layer)
        if group is None or group.format is None:
            return None
        ordered = group.orders and (self.stored is None or self.entry(f"{layer}.weight_g_idx") is not None)
        return replace(group.format, reordered=True) if ordered else group.format

    def _group(self, layer: str) -> _Group | None:
        """The group with a target that names the layer, else with a matching expression, else with the layer's class."""
        if matches(layer, self._ignore):
            return None
        kinds: tuple[Callable[[str], bool], ...] = (
            lambda t: not t.startswith("re:") and t not in CLASSES, lambda t: t.startswith("re:"), lambda t: t in CLASSES,
        )  # fmt: skip
        found = (g for kind in kinds for g in self._groups if matches(layer, filter(kind, g.targets)))
        return next(found, None)

    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, WeightPart]:
        group, form = self._of(layer)
        out, fan_in = shape
        micro = group.layout.startswith("mx")
        result = {"weight_scale": WeightPart(group.scales(shape), dtypes=POWERS if micro else FLOATS)}
        if group.layout == "pack-quantized":
            packed = tuple((out, n) for n in self._words(fan_in, group.bits))
            result |= {
                "weight_packed": WeightPart(packed, dtypes=("int32",)), "weight_shape": WeightPart(((2,),)),
                "weight_g_idx": WeightPart(((fan_in,),), optional=not form.reordered, dtypes=("int32", "int64")),
            }  # fmt: skip
            if not form.symmetric:
                across = [(rows, *s[1:]) for s in group.scales(shape) if len(s) == 2 for rows in self._words(out, group.bits)]
                result["weight_zero_point"] = WeightPart((*across, (1,)), dtypes=("int32", "int8"))
        elif group.layout.endswith("pack-quantized"):
            held = WeightPart(((out, fan_in * group.bits // 8),), dtypes=BYTES)
            result |= {"weight_packed": held, "weight_shape": WeightPart(((2,),), optional=True)}
            if group.layout == NVFP4:
                result["weight_scale"] = WeightPart(group.scales(shape), dtypes=("float8_e4m3fn",))
                result["weight_global_scale"] = WeightPart(((1,), ()), dtypes=FLOATS)
        else:
            kept = INTEGERS if form.kind == "int" else ("float8_e4m3fn",)
            zeros = WeightPart(group.scales(shape), optional=form.symmetric, dtypes=(*INTEGERS, *FLOATS, "float8_e4m3fn"))
            result |= {"weight": WeightPart((shape,), dtypes=kept), "weight_zero_point": zeros}
        scale = "input_global_scale" if form.act == "nvfp4" else "input_scale"
        return result | {scale: WeightPart(((1,), (), (1, 1)), optional=not form.own_scale, dtypes=FLOATS)}

    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        group, form = self._of(layer)
        if group.layout == "pack-quantized":
            data = self._read_codes(group, form, layer, shape, get)
        elif group.bits == 6 and form.kind == "float":
            data = {"codes": float6(get("weight_packed"), E2M3)}
        elif group.bits == 4 and form.kind == "float":
            data = {"codes": float4(get("weight_packed"))}
        else:
            data = {"codes": get("weight")}
            if not form.symmetric:  # both are from -2**(bits - 1) on
                low = 1 << (group.bits - 1)
                data = {"codes": _to_uint8(data["codes"], low), "zeros": _to_uint8(get("weight_zero_point"), low)}
        if "zeros" in data:
            data["zeros"] = _spread(data["zeros"], group, shape[0])
        if group.layout == NVFP4:
            outer = 1 / get("weight_global_scale").float().reshape(1, 1)
            data |= {"scales": get("weight_scale"), "scale": outer.expand(shape[0], 1).contiguous()}
        else:
            data["scales"] = _spread(wide(get("weight_scale"), layer), group, shape[0])
        if form.act == "nvfp4":
            data["input_scale"] = 1 / get("input_global_scale").float().reshape(1, 1)
        elif form.own_scale:
            data["input_scale"] = get("input_scale").float().reshape(1, 1)
        return QTensor(form, shape, data)

    def _read_codes(self, group: _Group, form: WeightFormat, layer: str, shape: tuple[int, int], get: Get) -> dict[str, Any]:
        """Codes, zero points and the order of the inputs."""
        if (declared := tuple(get("weight_shape").tolist())) != shape:
            raise CheckpointError(f"{layer}.weight_shape is {list(declared)}, config.json makes it {list(shape)}")
        packed = get("weight_packed")
        dense, padded = self._words(shape[1], group.bits)
        whole_words = packed.shape[1] == padded if dense != padded else self._padded
        codes = unpack(packed, group.bits, shape[1], whole_words)
        data = {"codes": codes}
        if form.symmetric:
            data["codes"] = (codes.short() - (1 << (group.bits - 1))).char()
        else:
            zeros = get("weight_zero_point")
            if zeros.dim() == 1:
                data["zeros"] = _to_uint8(zeros, 1 << (group.bits - 1))
            else:
                data["zeros"] = unpack(zeros.T.contiguous(), group.bits, shape[0], whole_words).T.contiguous()
        if form.reordered:
            data["perm"] = group_permutation(get("weight_g_idx"), form.group, layer)
            data["codes"] = data["codes"][:, data["perm"][0].long()].contiguous()
        return data

    def _words(self, count: int, bits: int) -> tuple[int, ...]:
        """Words for `count` codes: packed without gaps, or as many as fit whole in each word."""
        return words(count, bits), -(-count // (WORD // bits))

    def _of(self, layer: str) -> tuple[_Group, WeightFormat]:
        group, form = self._group(layer), self.scheme(layer)
        assert group is not None, layer
        assert form is not None, layer
        return group, form


def unpack(packed: Any, bits: int, count: int, padded: bool) -> Any:
    """int32 [rows, words] -> uint8 [rows, count]. padded: words hold as many codes as fit whole, and none lies in two."""
    import torch

    if not padded:
        return stream(packed, bits, count)
    shifts = bits * torch.arange(WORD // bits, dtype=torch.int32)
    return (packed[..., None] >> shifts & (1 << bits) - 1).flatten(1)[:, :count].to(torch.uint8)


def group_permutation(groups: Any, size: int, layer: str) -> Any:
    """The group of each input [in] -> "perm" int32 [1, in], which sorts inputs by group. CheckpointError for groups of unequal
    size. -1: every input is in its original place."""
    import torch

    groups = groups.to(torch.int64)
    if bool((groups < 0).any()):
        groups = torch.arange(len(groups)) // size
    perm = torch.argsort(groups, stable=True)
    if not torch.equal(groups[perm], torch.arange(len(groups)) // size):
        raise CheckpointError(f"{layer}.weight_g_idx: its groups are not of {size} inputs each")
    return perm.to(torch.int32)[None]


def _to_uint8(codes: Any, low: int) -> Any:
    import torch

    return (codes.to(torch.int16) + low).to(torch.uint8)


def _spread(scales: Any, group: _Group, rows: int) -> Any:
    """Scales or zero points for every row."""
    assert group.format is not None
    if group.block is not None:
        return by_rows(scales, group.block[0], rows)
    return scales.contiguous() if group.format.group else per_row(scales, rows)


def _group(name: str, declared: Any, default: str) -> _Group:
    where = f"quantization_config: config_groups: {name}"
    if not isinstance(declared, Mapping):
        raise UnsupportedModelError(f"{where}: must be an object with targets and weights, not {declared!r:.80}")
    targets = names(declared, "targets")
    w, inputs = declared.get("weights"), declared.get("input_activations")
    if declared.get("output_activations"):
        raise UnsupportedModelError(f"{where}: output_activations: this version rounds inputs of layers, not their outputs")
    if w is None and not inputs:
        return _Group(targets)
    if not isinstance(w, Mapping):
        raise UnsupportedModelError(f"{where}: weights: this version reads groups with quantised weights only")
    layout = str(declared.get("format") or default)
    layout = _infer_layout(w, inputs) if layout in ("", "mixed-precision", "naive-quantized") else layout
    if layout not in STORED:
        raise UnsupportedModelError(f"{where}: format: {layout!r:.80}: {_AWAY}")
    kind, widths = STORED[layout]
    bits, strategy, symmetric = w.get("num_bits"), w.get("strategy"), bool(w.get("symmetric", True))
    if w.get("type") != kind or bits not in widths:
        raise UnsupportedModelError(
            f"{where}: {layout} of {w.get('type')!r} in {bits!r} bits: this version reads {kind} in "
            f"{' or '.join(map(str, widths))}"
        )
    block = _block(where, w.get("block_structure")) if strategy == "block" else None
    group = (
        0 if strategy in ("tensor", "channel") else block[1] if block else number(w.get("group_size"), f"{where}: group_size")
    )
    by = (
        ("tensor_group",)
        if layout == NVFP4
        else ("group",)
        if layout.startswith("mx")
        else ("tensor", "channel", "group", "block")
    )
    if not isinstance(group, int) or strategy not in by or (kind == "float" and not symmetric):
        raise UnsupportedModelError(
            f"{where}: weights by {strategy!r}, symmetric {symmetric}: not read by this version as {layout}"
        )
    orders = w.get("actorder") in ("group", "dynamic")
    if orders and (layout != "pack-quantized" or strategy != "group"):
        raise UnsupportedModelError(f"{where}: actorder: reordered inputs are only supported for pack-quantized groups")
    inputs_act = activations.act(f"{where}: input_activations", inputs, group)
    form = WeightFormat(
        "int" if kind == "int" else "float", 4 if bits <= 4 else 8, group, symmetric,
        scale_dtype="float8_e4m3fn" if layout == NVFP4 else "", act=inputs_act,
    )  # fmt: skip
    return _Group(targets, layout, bits, form, block, orders)


def _block(where: str, declared: Any) -> tuple[int, int]:
    if isinstance(declared, list | tuple) and len(declared) == 2:
        return number(declared[0], f"{where}: block_structure"), number(declared[1], f"{where}: block_structure")
    raise UnsupportedModelError(
        f"{where}: block_structure: must be rows and columns of a block ([128, 128]), not {declared!r:.60}"
    )


def _infer_layout(w: Mapping[str, Any], inputs: Any) -> str:
    """The layout that the library chooses for such weights, where a file does not say."""
    if w.get("type") == "int":
        return "int-quantized" if inputs else "pack-quantized"
    if w.get("group_size") == WORD and w.get("num_bits") in (4, 6):
        return f"mxfp{w['num_bits']}-pack-quantized"
    if w.get("num_bits") == 4:
        return NVFP4
    return "mxfp8-quantized" if w.get("scale_dtype") in ("torch.uint8", "uint8") else "float-quantized"


def _version(declared: Any) -> tuple[int, ...]:
    """Of the library that wrote the files: its first two numbers. Unknown: the newest."""
    numbers = str(declared or "").split(".")[:2]
    return tuple(map(int, numbers)) if len(numbers) == 2 and all(n.isdigit() for n in numbers) else (99, 0)
