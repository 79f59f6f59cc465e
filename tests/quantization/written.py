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

GROUP, BLOCK = 8, 16
"""In place of a preset's 128: tiny models have few inputs. Some of their blocks are partial."""


def scheme(preset: str, targets: list[str]) -> Any:
    from compressed_tensors.quantization import preset_name_to_scheme

    made = preset_name_to_scheme(preset, targets)
    if made.weights.strategy == "block":
        made.weights.block_structure = [BLOCK, BLOCK]
        made.input_activations.group_size = BLOCK
    elif made.weights.group_size:
        made.weights.group_size = GROUP
    return made


def compress(weight: torch.Tensor, how: Any, layout: str) -> dict[str, torch.Tensor]:
    """The tensors of one layer, by suffix."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams

    low, high = _ranges(weight, how.weights)
    scale, zero = calculate_qparams(low, high, how.weights)
    held = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    made = dict(BaseCompressor.get_value_from_registry(layout).compress(held, how))
    return {k: v.contiguous() for k, v in made.items() if v is not None}


def decompress(tensors: Mapping[str, torch.Tensor], how: Any, layout: str) -> torch.Tensor:
    """What the library makes of them: the dense weight, in float32."""
    from compressed_tensors.compressors import BaseCompressor

    wide = {k: v.float() if k == "weight_scale" else v for k, v in tensors.items()}
    weight: torch.Tensor = BaseCompressor.get_value_from_registry(layout).decompress(wide, how)["weight"]
    return weight.float()


def _ranges(weight: torch.Tensor, args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest value of what shares a scale."""
    strategy = str(getattr(args.strategy, "value", args.strategy))
    if strategy == "tensor":
        return weight.amin().reshape(1), weight.amax().reshape(1)
    if strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    if strategy == "group":
        parts = weight.unflatten(1, (-1, args.group_size))
        return parts.amin(-1), parts.amax(-1)
    rows, columns = args.block_structure
    grown = torch.nn.functional.pad(weight, (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows))
    blocks = grown.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
    return blocks.amin((1, 3)), blocks.amax((1, 3))


LAYOUTS = {"W4A16": "pack-quantized", "W4A16_ASYM": "pack-quantized", "W8A16": "pack-quantized", "W8A8": "int-quantized",
           "FP8_DYNAMIC": "float-quantized", "FP8_BLOCK": "float-quantized"}  # fmt: skip


def rewrite(source: Path, out: Path, groups: Mapping[str, tuple[str, list[str]]], ignore: list[str]) -> dict[str, torch.Tensor]:
    """The checkpoint of `source`, quantised, in `out`; the dense weights that the library reads back from it.

    groups: name -> (preset, targets), each by a list of endings of layers' names or ["Linear"]."""
    from compressed_tensors.quantization import QuantizationConfig

    how = {name: scheme(preset, targets) for name, (preset, targets) in groups.items()}
    layouts = {name: LAYOUTS[preset] for name, (preset, _) in groups.items()}
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
    (out / "config.json").write_text(
        json.dumps(config | {"quantization_config": said | {"quant_method": "compressed-tensors"}})
    )
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
