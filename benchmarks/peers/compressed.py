"""Checkpoints in the compressed-tensors format, as vLLM reads them: every linear layer of the decoder rounded to nearest,
symmetric. Embedding and output matrix stay as they are.

`w8a8`: int8 weights with a scale per output row; activations are rounded to int8 per token while running.
`w4a16`: int4 weights with a scale per 128 inputs, eight to an int32 (lowest bits first, 8 added to each); activations stay.
Field names and packing: the compressed-tensors project's description of "int-quantized" and "pack-quantized".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

GROUP = 128
FORMATS = {"w8a8": "int-quantized", "w4a16": "pack-quantized"}


def write(kind: str, source: Path, out: Path) -> None:
    """source: an unquantised checkpoint of one safetensors file. out: an empty directory; tokenizer files are not copied."""
    tensors: dict[str, torch.Tensor] = {}
    with safe_open(source / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a dict)
            weight = file.get_tensor(name)
            if name.endswith("_proj.weight"):
                rounded = int8(weight) if kind == "w8a8" else int4(weight)
                tensors |= {f"{name}{suffix}": t for suffix, t in rounded.items()}
            else:
                tensors[name] = weight
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "quantization_config": description(kind)}, indent=2) + "\n")


def int8(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """weight: (out, in). By suffix of the weight's name: codes (out, in) int8, scales (out, 1) in the weight's type."""
    scale = _scale(weight.float(), 127)
    codes = (weight.float() / scale.float()).round().clamp(-127, 127)
    return {"": codes.to(torch.int8), "_scale": scale.to(weight.dtype)}


def int4(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """weight: (out, in), `in` a multiple of 128. Packed codes (out, in / 8) int32, scales (out, in / 128), the shape."""
    rows, columns = weight.shape
    grouped = weight.float().reshape(rows, columns // GROUP, GROUP)
    scale = _scale(grouped, 7).to(weight.dtype)
    codes = (grouped / scale.float()).round().clamp(-8, 7).to(torch.int64).reshape(rows, columns // 8, 8) + 8
    packed = (codes << (4 * torch.arange(8))).sum(-1)
    signed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    return {"_packed": signed, "_scale": scale.squeeze(-1).contiguous(), "_shape": torch.tensor([rows, columns])}


def _scale(values: torch.Tensor, most: int) -> torch.Tensor:
    """Largest magnitude of the last dimension / most; (..., 1). Rounded as it will be stored, so that codes fit it."""
    return (values.abs().amax(-1, keepdim=True) / most).clamp_min(1e-8).to(torch.bfloat16)


def description(kind: str) -> dict[str, Any]:
    """quantization_config of config.json."""
    weights: dict[str, Any] = {"type": "int", "symmetric": True, "dynamic": False}
    inputs = None
    if kind == "w8a8":
        weights |= {"num_bits": 8, "strategy": "channel"}
        inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    else:
        weights |= {"num_bits": 4, "strategy": "group", "group_size": GROUP}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": FORMATS[kind], "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None,
    }  # fmt: skip
