"""A checkpoint's scales for a float8 KV cache: one for the keys of a layer, one for the values. The cache stores the value
divided by the scale. Loads no tensor framework.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.quantization.format import Format, Scheme

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
"""Cache dtypes, by `AttnSpec.kv_dtype`, to which the scales apply."""
_NAMES = (
    "{kind}_scale", "attn.{kind}_scale", "{kind}_proj.{kind}_scale", "qkv_proj.{kind}_scale", "{kind}_proj.output_scale",
    "qkv_proj.output_scale", "{kind}_cache.scale", "kv_scale", "attn.kv_scale",
)  # fmt: skip
"""Under which writers keep them, after the name of the attention; {kind}: k or v. The latter four may serve both."""


@dataclass(frozen=True, slots=True)
class CacheScales:
    """Of one layer."""

    key: float
    value: float
    names: tuple[str, ...]
    """Of the tensors that hold them."""


def scales(formats: Scheme, attention: str) -> CacheScales | None:
    """The file's scales for this layer ("model.layers.0.self_attn"). None: none, or both are 1. A scale of 0 or less was never
    calibrated, and counts as 1. UnsupportedModelError, CheckpointError name the tensor."""
    if not isinstance(formats, Format):
        return None
    found: dict[str, tuple[float, str]] = {}
    for kind in "kv":
        for name in (f"{attention}.{each.format(kind=kind)}" for each in _NAMES):
            stored = formats.value(name)
            if stored is not None:
                found[kind] = (_number(formats, name, stored), name)
                break
    if not found:
        return None
    key, value = (found.get(kind, (1.0, ""))[0] for kind in "kv")
    return CacheScales(key, value, tuple(dict.fromkeys(name for _, name in found.values())))


def _number(formats: Format, name: str, value: np.ndarray) -> float:
    entry = formats.entry(name)
    if value.size != 1:
        raise UnsupportedModelError(
            f"{name}: has {value.size} scales: this version caches keys and values with one for each layer; set "
            "--kv-cache-dtype to the model's own type (bfloat16, float16)"
        )
    if entry is not None and entry[0] == "bfloat16":
        value = (value.astype(np.uint32) << 16).view(np.float32)
    number = float(value.reshape(-1)[0])
    if not math.isfinite(number):
        raise CheckpointError(f"{name}: {number} is not a finite scale")
    return number if number > 0 else 1.0
