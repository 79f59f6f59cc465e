"""What the model-making scripts share: random weights of a Llama-like shape, and a safetensors file written as it is drawn.

Values come from seeded PCG64 generators, one independent stream per tensor, and are rounded to
bfloat16 in integer arithmetic: the same bytes on every machine.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

STORED = {"bfloat16": ("BF16", 2), "float16": ("F16", 2), "float32": ("F32", 4)}
CHUNK = 1 << 22
"""Values drawn at once."""


def shapes(config: Mapping[str, Any], qk_norm: bool = False) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of a Llama-like checkpoint without biases. With `num_experts` every layer is a mixture."""
    h, d = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], h)}
    for i in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm": (h,),
            "self_attn.q_proj": (q, h),
            "self_attn.k_proj": (kv, h),
            "self_attn.v_proj": (kv, h),
            "self_attn.o_proj": (h, q),
            "post_attention_layernorm": (h,),
            **_ffn(config),
        }
        if qk_norm:
            layer |= {"self_attn.q_norm": (d,), "self_attn.k_norm": (d,)}
        out |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    out["model.norm.weight"] = (h,)
    if not config["tie_word_embeddings"]:
        out["lm_head.weight"] = (config["vocab_size"], h)
    return out


def _ffn(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    h, experts = config["hidden_size"], config.get("num_experts")

    def mlp(name: str, f: int) -> dict[str, tuple[int, ...]]:
        return {f"{name}.gate_proj": (f, h), f"{name}.up_proj": (f, h), f"{name}.down_proj": (h, f)}

    if not experts:
        return mlp("mlp", config["intermediate_size"])
    out = {"mlp.gate": (experts, h)}
    for i in range(experts):
        out |= mlp(f"mlp.experts.{i}", config["moe_intermediate_size"])
    return out


def write(path: Path, config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], seed: int) -> None:
    """A safetensors file: norms are one, matrices normal with deviation 1 / sqrt(inputs), embedding and output 3 times that."""
    stored, width = STORED[config["dtype"]]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in tensors.items():
        size = math.prod(shape) * width
        header[name] = {"dtype": stored, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors.items():
            for values in _values(name, shape, seed):
                f.write(_stored(values, config["dtype"]))


def _values(name: str, shape: tuple[int, ...], seed: int) -> Iterator[np.ndarray]:
    count = math.prod(shape)
    if "norm" in name:
        yield np.ones(count, np.float32)
        return
    scale = (3 if "embed" in name or "lm_head" in name else 1) / shape[-1] ** 0.5
    rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
    for start in range(0, count, CHUNK):
        yield rng.standard_normal(min(CHUNK, count - start), np.float32) * np.float32(scale)


def _stored(values: np.ndarray, dtype: str) -> bytes:
    if dtype != "bfloat16":
        return values.astype(dtype).tobytes()
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()  # round to nearest, ties to even
