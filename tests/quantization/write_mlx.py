"""Writes the MLX checkpoints of tests/quantization/data, as `write_ints.py` does those of other libraries.

    python -m venv oracle && oracle/bin/pip install torch mlx-lm==0.32.2 'mlx[cpu]==0.32.4'
    oracle/bin/python tests/quantization/write_mlx.py [RECIPE ...]

The sums are those of `mx.dequantize` in float32: scales and biases are widened first.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import torch
import transformers
import write_ints

SIZES = {**write_ints.SIZES, "hidden_size": 128, "intermediate_size": 128, "num_key_value_heads": 1}
MIXED = {"q_proj": {"bits": 8, "group_size": 32}, "up_proj": {"bits": 6, "group_size": 64}, "down_proj": False}
"""Last part of a layer's name -> its settings, false for a dense layer."""
EXPERTS = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 32,
           "hidden_size": 64, "intermediate_size": 64, "decoder_sparse_step": 1, "mlp_only_layers": []}  # fmt: skip
"""Changes to SIZES for a mixture of experts: MLX joins the experts of a layer, and gives routers 8 bits."""
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "2": {"bits": 2, "group_size": 32},
    "3": {"bits": 3, "group_size": 64},
    "4": {"bits": 4, "group_size": 64},
    "5": {"bits": 5, "group_size": 128},
    "6": {"bits": 6, "group_size": 32},
    "8": {"bits": 8, "group_size": 128},
    "mxfp4": {"bits": 4, "group_size": 32, "mode": "mxfp4"},
    "mxfp8": {"bits": 8, "group_size": 32, "mode": "mxfp8"},
    "nvfp4": {"bits": 4, "group_size": 16, "mode": "nvfp4"},
    "experts": {"bits": 4, "group_size": 32, "model": "qwen3_moe"},
    "mixed": {"bits": 4, "group_size": 128, "untied": True, "layers": MIXED},
}


def write(name: str, recipe: Mapping[str, Any], folder: Path) -> None:
    write_ints.SIZES = {**SIZES, "tie_word_embeddings": not recipe.get("untied")}
    plain, made = write_ints.source(folder / "plain"), folder / "mlx"
    if recipe.get("model"):
        write_experts(plain)
    layers = recipe.get("layers", {})
    said = {"mode": recipe.get("mode", "affine"), "group_size": recipe["group_size"], "bits": recipe["bits"]}
    mlx_lm.convert(
        str(plain), str(made), quantize=True, q_group_size=said["group_size"], q_bits=said["bits"], q_mode=said["mode"],
        quant_predicate=(lambda path, _: layers.get(path.rpartition(".")[2], True)) if layers else None,
    )  # fmt: skip
    config = json.loads((made / "config.json").read_text())
    tensors = mx.load(str(made / "model.safetensors"))
    sums = {}
    for weight in (n for n in tensors if n.endswith(("_proj.weight", "mlp.gate.weight"))):
        layer = weight.removesuffix(".weight")
        how = {**said, **(config["quantization"].get(layer) or {})}
        scales, biases = tensors.get(f"{layer}.scales"), tensors.get(f"{layer}.biases")
        if scales is None:
            values = tensors[weight].astype(mx.float32)
        elif biases is not None:
            values = mx.dequantize(tensors[weight], scales.astype(mx.float32), biases.astype(mx.float32), **how)
        else:
            values = mx.dequantize(tensors[weight], scales, **how, dtype=mx.float32)
        whole = torch.from_numpy(np.array(values))
        for at, part in enumerate(whole if whole.ndim == 3 else [whole]):
            sums[weight.replace("switch_mlp", f"experts.{at}")] = write_ints.digest(part)
    out = write_ints.DATA / f"mlx-{name}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.copy(made / file, out)
    versions = {p: version(p) for p in ("mlx", "mlx-lm", "transformers")}
    (out / "oracle.json").write_text(json.dumps({"versions": versions, "near": False, "sha256": sums}, indent=1) + "\n")
    print(out.name, sum(f.stat().st_size for f in out.iterdir()), transformers.__version__, flush=True)


@torch.no_grad()
def write_experts(plain: Path) -> None:
    """A mixture of experts over the files of the plain model, with the keys of config.json that mlx-lm reads."""
    config = transformers.Qwen3MoeConfig(**{**write_ints.SIZES, **EXPERTS})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    g = torch.Generator().manual_seed(8)
    for name, p in model.named_parameters():
        if "norm" not in name:
            p.normal_(0, 0.4 if "embed" in name else 1.2 / p.shape[-1] ** 0.5, generator=g)
    model.to(torch.float16).save_pretrained(plain)
    said = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps({**said, "num_experts": 4, "rope_theta": 10000.0}))


if __name__ == "__main__":
    for each, settings in RECIPES.items():
        if sys.argv[1:] and each not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            write(each, settings, Path(temporary))
