"""Quantised checkpoints, written by the library that defines their format, compressed-tensors: for tests of readers.

The library quantises and packs every tensor; only the loop over a model's layers is here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

STATUS = {"quant_method": "compressed-tensors", "quantization_status": "compressed"}
PRESET = 128
"""Inputs in a group or block of most presets."""
GROUP, BLOCK = 8, 16
"""In place of that: tiny models have few inputs. Some of their blocks are partial."""


def scheme(preset: str, targets: list[str]) -> Any:
    from compressed_tensors.quantization import preset_name_to_scheme

    made = preset_name_to_scheme(preset, targets)
    if made.weights.strategy == "block":
        made.weights.block_structure = [BLOCK, BLOCK]
        made.input_activations.group_size = BLOCK
    elif made.weights.group_size == PRESET:
        made.weights.group_size = GROUP
    elif made.input_activations is not None and made.input_activations.group_size == PRESET:
        made.input_activations.group_size = BLOCK
    return made


def layout(preset: str) -> str:
    """The one that the library chooses for it."""
    from compressed_tensors.compressors.format import infer_module_format

    return str(infer_module_format(torch.nn.Linear, scheme(preset, ["Linear"])).value)


def compress(weight: torch.Tensor, how: Any, layout: str, x: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """The tensors of one layer, by suffix. x: inputs by which static scales are chosen, else normal ones."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    low, high = _ranges(weight, how.weights)
    outer = {}
    if how.weights.strategy == "tensor_group":
        outer = {"weight_global_scale": generate_gparam(weight.amin().reshape(1), weight.amax().reshape(1))}
    scale, zero = calculate_qparams(low, high, how.weights, *outer.values())
    held = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero, **outer}
    made = dict(BaseCompressor.get_value_from_registry(layout).compress(held, how))
    inputs = how.input_activations
    if inputs is not None and inputs.dynamic is not True:
        low, high = (torch.tensor([-4.0]), torch.tensor([4.0])) if x is None else (x.amin().reshape(1), x.amax().reshape(1))
        if inputs.dynamic == "local":
            made["input_global_scale"] = generate_gparam(low, high)
        else:
            made["input_scale"] = calculate_qparams(low, high, inputs)[0]
    return {k: v.contiguous() for k, v in made.items() if v is not None}


def decompress(tensors: Mapping[str, torch.Tensor], how: Any, layout: str) -> torch.Tensor:
    """What the library makes of them: the dense weight, in float32. 4- and 6-bit floats it would round to bfloat16: there
    its two steps are called one by one."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.mx_utils import decompress_mx_scale
    from compressed_tensors.compressors.mxfp6.helpers import unpack_fp6_from_uint8
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    packed = tensors.get("weight_packed")
    if packed is not None and packed.dtype == torch.uint8:
        rows, width = packed.shape
        scale = tensors["weight_scale"]
        scale = decompress_mx_scale(scale).float() if scale.dtype == torch.uint8 else scale.float()
        codes = (
            unpack_fp6_from_uint8(packed, rows, width * 4 // 3, torch.float32)
            if "fp6" in layout
            else unpack_fp4_from_uint8(packed, rows, width * 2, torch.float32)
        )
        dense: torch.Tensor = dequantize(codes, scale, None, how.weights, global_scale=tensors.get("weight_global_scale"))
        return dense
    wide = {k: v.float() if k == "weight_scale" and v.dtype != torch.uint8 else v for k, v in tensors.items()}
    weight: torch.Tensor = BaseCompressor.get_value_from_registry(layout).decompress(wide, how)["weight"]
    return weight.float()


def _ranges(weight: torch.Tensor, args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest value of what shares a scale."""
    strategy = str(getattr(args.strategy, "value", args.strategy))
    if strategy == "tensor":
        return weight.amin().reshape(1), weight.amax().reshape(1)
    if strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    if strategy in ("group", "tensor_group"):
        parts = weight.unflatten(1, (-1, args.group_size))
        return parts.amin(-1), parts.amax(-1)
    rows, columns = args.block_structure
    grown = torch.nn.functional.pad(weight, (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows))
    blocks = grown.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
    return blocks.amin((1, 3)), blocks.amax((1, 3))


def rewrite(source: Path, out: Path, groups: Mapping[str, tuple[str, list[str]]], ignore: list[str]) -> dict[str, torch.Tensor]:
    """The checkpoint of `source`, quantised, in `out`; the dense weights that the library reads back from it.

    groups: name -> (preset, targets), each by a list of endings of layers' names or ["Linear"]."""
    from compressed_tensors.quantization import QuantizationConfig

    how = {name: scheme(preset, targets) for name, (preset, targets) in groups.items()}
    layouts = {name: layout(preset) for name, (preset, _) in groups.items()}
    made, dense = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        chosen = next((g for g, (_, targets) in groups.items() if _meant(layer, tensor, targets, ignore)), None)
        if chosen is None:
            made[name] = dense[name] = tensor
            continue
        tensors = compress(tensor, how[chosen], layouts[chosen])
        made |= {f"{layer}.{suffix}": t for suffix, t in tensors.items()}
        dense[name] = decompress(tensors, how[chosen], layouts[chosen])
    out.mkdir(parents=True)
    save_file(made, out / "model.safetensors", {"format": "pt"})
    mixed = len(set(layouts.values())) > 1
    described = QuantizationConfig(
        config_groups=how, ignore=ignore, format="mixed-precision" if mixed else next(iter(layouts.values()))
    )
    said = json.loads(described.model_dump_json())
    for name, group in said["config_groups"].items():
        group["format"] = layouts[name]
    config = json.loads((source / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"quantization_config": said | STATUS}))
    for other in ("tokenizer.json", "tokenizer_config.json"):
        if (source / other).exists():
            (out / other).write_bytes((source / other).read_bytes())
    return dense


def _meant(layer: str, tensor: torch.Tensor, targets: list[str], ignore: list[str]) -> bool:
    if tensor.dim() != 2 or "embed" in layer or layer in ignore or not layer:
        return False
    return targets == ["Linear"] or any(layer.endswith(t.removeprefix("re:.*")) for t in targets)


def as_dense(path: Path, source: Path, dense: Mapping[str, torch.Tensor]) -> Path:
    """A checkpoint of the weights as the library reads them back."""
    path.mkdir(parents=True)
    save_file({k: v.contiguous() for k, v in dense.items()}, path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_bytes((source / "config.json").read_bytes())
    return path
