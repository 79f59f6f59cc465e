"""Adapters in files, made of random numbers, and the same added to their model's weights."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

ATTENTION, ALL = ("q_proj", "v_proj"), ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(base: Path, folder: Path, seed: int, rank: int, modules: tuple[str, ...], **config: Any) -> Path:
    """A random adapter of a checkpoint in peft's form, and beside it ("merged") the checkpoint with it added."""
    rng = torch.Generator().manual_seed(seed)
    weights, tensors = load_file(base / "model.safetensors"), {}
    said = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(modules), **config}
    scale = said["lora_alpha"] / (math.sqrt(rank) if said.get("use_rslora") else rank)
    for name, weight in weights.items():
        module = name.removesuffix(".weight")
        if module.endswith(modules):
            a = torch.randn(rank, weight.shape[1], generator=rng) / weight.shape[1] ** 0.5
            b = torch.randn(weight.shape[0], rank, generator=rng) * 0.1
            tensors |= {f"base_model.model.{module}.lora_{k}.weight": v for k, v in (("A", a), ("B", b))}
            weights[name] = weight + scale * b @ a
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(said))
    save_file(tensors, folder / "adapter_model.safetensors")
    shutil.copytree(base, folder / "merged", dirs_exist_ok=True)
    save_file(weights, folder / "merged" / "model.safetensors", {"format": "pt"})
    return folder
