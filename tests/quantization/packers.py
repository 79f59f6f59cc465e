"""Writers of quantised layers by the definitions of their formats, in numpy: for what no library here writes. Act-order,
version 2, odd settings, experts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Layer = tuple[dict[str, np.ndarray], np.ndarray]
"""Tensors by suffix, and the weight in float32 that they stand for."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output whose code lies in each nibble of a word, from the lowest on."""


def stream(codes: np.ndarray, bits: int) -> np.ndarray:
    """[n, columns] -> int32 [words, columns]: every column a stream of bits, lowest first."""
    each = (codes[:, None, :] >> np.arange(bits)[None, :, None]) & 1
    flat = each.reshape(-1, codes.shape[1]).astype(np.uint8)
    flat = np.pad(flat, ((0, -len(flat) % 32), (0, 0)))
    return (
        np.packbits(flat.reshape(-1, 32, codes.shape[1]), axis=1, bitorder="little")
        .transpose(0, 2, 1)
        .copy()
        .view("<i4")[..., 0]
    )


def grouped(weight: np.ndarray, groups: np.ndarray, bits: int, symmetric: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [out, in], zeros and scales [out, groups], rounded to nearest by the groups that inputs are in."""
    top, count = (1 << bits) - 1, int(groups.max()) + 1
    parts = [weight[:, groups == g] for g in range(count)]
    low = np.stack([p.min(1).clip(max=0) for p in parts], 1)
    high = np.stack([p.max(1).clip(min=0) for p in parts], 1)
    if symmetric:
        high = np.maximum(high, -low)
        low = -high
    scales = ((high - low) / top).astype(np.float16)
    zeros = np.full_like(low, 1 << (bits - 1)) if symmetric else np.round(-low / scales)
    codes = np.round(weight / scales[:, groups] + zeros[:, groups]).clip(0, top)
    return codes.astype(np.int64), zeros.clip(0, top).astype(np.int64), scales


def value(codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray, groups: np.ndarray) -> np.ndarray:
    return (codes - zeros[:, groups]).astype(np.float32) * scales.astype(np.float32)[:, groups]


def gptq(weight: np.ndarray, bits: int = 4, group: int = 8, symmetric: bool = True, version: int = 1,
         order: np.random.Generator | None = None) -> Layer:  # fmt: skip
    """order: of act-order. Inputs are dealt to groups at random, as sorting them by importance does."""
    inputs = weight.shape[1]
    groups = np.arange(inputs) // (inputs if group == -1 else group)
    if order is not None:
        groups = order.permutation(groups)
    codes, zeros, scales = grouped(weight, groups, bits, symmetric)
    if version == 1:
        zeros = np.maximum(zeros, 1)  # what version 1 can hold
        codes = np.round(weight / scales[:, groups] + zeros[:, groups]).clip(0, (1 << bits) - 1).astype(np.int64)
    held = {
        "qweight": stream(codes.T, bits), "qzeros": stream(zeros - (version == 1), bits).T.copy(),
        "scales": scales.T.copy(), "g_idx": groups.astype(np.int32),
    }  # fmt: skip
    return held, value(codes, zeros, scales, groups)


def awq(weight: np.ndarray, group: int = 8, symmetric: bool = False) -> Layer:
    groups = np.arange(weight.shape[1]) // group
    codes, zeros, scales = grouped(weight, groups, 4, symmetric)

    def packed(values: np.ndarray) -> np.ndarray:
        nibbles = values.reshape(len(values), -1, 8)[..., AWQ_ORDER].reshape(len(values), -1)
        return stream(nibbles.T, 4).T.copy()

    return {"qweight": packed(codes.T), "qzeros": packed(zeros.T), "scales": scales.T.copy()}, value(
        codes, zeros, scales, groups
    )


def rewrite(
    source: Path, out: Path, description: Mapping[str, Any], how: Callable[[str, np.ndarray], Layer | None]
) -> dict[str, Any]:
    """The checkpoint of `source` with its layers as `how` writes them, in `out` -> its dense weights. None: stays dense."""
    shutil.copytree(source, out)
    held, dense = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        made = how(name.removesuffix(".weight"), tensor.numpy()) if name.endswith("_proj.weight") else None
        if made is None:
            held[name] = dense[name] = tensor
            continue
        held |= {f"{name.removesuffix('weight')}{k}": torch.from_numpy(np.ascontiguousarray(v)) for k, v in made[0].items()}
        dense[name] = torch.from_numpy(made[1])
    save_file(held, out / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"quantization_config": dict(description)}))
    return dense


def nf4(weight: np.ndarray, block: int = 8) -> Layer:
    """bitsandbytes: blocks of the flattened matrix, the first of two codes in the upper half of a byte."""
    from thalweg.quantization.formats.bitsandbytes import NF4

    flat = weight.reshape(-1, block)
    absmax, levels = np.abs(flat).max(1), np.asarray(NF4, np.float32)
    codes = np.abs(flat[..., None] / absmax[:, None, None] - levels).argmin(-1).reshape(-1).astype(np.uint8)
    state = json.dumps({"quant_type": "nf4", "blocksize": block, "dtype": "float32", "shape": list(weight.shape)})
    held = {
        "weight": ((codes[::2] << 4) | codes[1::2])[:, None], "weight.absmax": absmax, "weight.quant_map": levels,
        "weight.quant_state.bitsandbytes__nf4": np.frombuffer(state.encode(), np.uint8).copy(),
    }  # fmt: skip
    return held, (levels[codes].reshape(-1, block) * absmax[:, None]).reshape(weight.shape)


def hqq(weight: np.ndarray, group: int = 8) -> Layer:
    """4 bits: the first half of the rows of groups is in the upper half of each byte."""
    rows = weight.reshape(-1, group)
    scale = (rows.max(1, keepdims=True) - rows.min(1, keepdims=True)) / np.float32(15)
    zero = -rows.min(1, keepdims=True) / scale
    codes = np.round(rows / scale + zero).clip(0, 15).astype(np.uint8)
    half = len(codes) // 2
    dense = codes.astype(np.float32) * scale - zero * scale
    return {"W_q": (codes[:half] << 4) | codes[half:], "scale": scale, "zero": zero}, dense.reshape(weight.shape)


def ternary(weight: np.ndarray) -> Layer:
    """BitNet's bitlinear: each quarter of the rows in two bits of a byte, a scale that divides."""
    scale = np.float32(1) / np.abs(weight).mean(dtype=np.float32)
    codes = np.round(weight * scale).clip(-1, 1).astype(np.int8)
    parts = np.split((codes + 1).astype(np.uint8), 4)
    packed = sum((p << (2 * i) for i, p in enumerate(parts)), np.zeros_like(parts[0]))
    return {"weight": packed, "weight_scale": scale.reshape(1)}, codes.astype(np.float32) * (np.float32(1) / scale)


def rows8(weight: np.ndarray) -> Layer:
    """torchao: int8 with a scale per output."""
    scale = (np.abs(weight).max(1, keepdims=True) / 127).astype(np.float32)
    codes = np.round(weight / scale).astype(np.int8)
    return {"_weight_qdata": codes, "_weight_scale": scale}, codes.astype(np.float32) * scale
