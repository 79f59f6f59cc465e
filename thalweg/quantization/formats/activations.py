"""Rounding of layers' inputs, as compressed-tensors describes it: `WeightFormat.act`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.errors import UnsupportedModelError

KINDS = {"int8": "int8", "int4": "int4", "float8": "float8_e4m3fn", "float4": "float4"}
"""By type and bits."""
MICRO = 32
"""Inputs that share a power of two."""


def act(where: str, settings: Any, group: int) -> str:
    """settings: the settings, or nothing. group: inputs that share a scale in the weight. UnsupportedModelError names an
    unsupported setting. One dynamic scale for a whole batch becomes one per row: text must not depend on other requests."""
    if not settings:
        return ""
    if not isinstance(settings, Mapping):
        raise UnsupportedModelError(f"{where}: must be an object, not {settings!r:.80}")
    kind = KINDS.get(f"{settings.get('type')}{settings.get('num_bits')}")
    strategy = str(settings.get("strategy") or "tensor")
    size, dynamic = settings.get("group_size"), settings.get("dynamic")
    if not settings.get("symmetric", True):
        raise UnsupportedModelError(f"{where}: symmetric: this version rounds inputs without a zero point, not with one")
    if kind == "float4" and strategy == "tensor_group" and size == 16 and dynamic == "local":
        return "nvfp4"
    if dynamic is True and strategy == "group" and size == MICRO and _powers(settings) and kind in ("float4", "float8_e4m3fn"):
        return "mxfp4_even" if kind == "float4" else "mxfp8_even"
    if kind is not None and kind != "float4":
        if dynamic is True and strategy in ("token", "tensor"):
            return kind
        if dynamic is True and strategy == "group" and isinstance(size, int) and size > 0:
            return f"{kind}_per_group" if size == group else f"{kind}_per_{size}"
        if not dynamic and strategy == "tensor":
            return f"{kind}_static"
    raise UnsupportedModelError(
        f"{where}: this version does not round inputs to {settings.get('type')} in {settings.get('num_bits')} bits per "
        f"{strategy}, "
        f"dynamic {dynamic}: it knows 8-bit numbers by token, group or a static scale, int4 by token, mxfp8, mxfp4 and nvfp4"
    )


def _powers(settings: Mapping[str, Any]) -> bool:
    return settings.get("num_bits") == 4 or settings.get("scale_dtype") in ("torch.uint8", "uint8")
