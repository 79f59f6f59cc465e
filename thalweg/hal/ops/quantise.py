"""Rounding: weights to codes, scales and zeros and back, and rows of activations to codes. Definitions, not fast paths."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from thalweg.hal.kv import SCALE_BYTES
from thalweg.hal.weights import QTensor, WeightFormat

PER_GROUP = "_per_group"
"""Ends the name of a `WeightFormat.act` that rounds by groups."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the 4-bit float (OCP Microscaling Formats, 1.0)."""


def round_rows(x: Tensor, act: str, group: int = 0) -> Tensor:
    """x [rows, in] -> the same, rounded to codes of `act` and back, in x's dtype. group: of the weight."""
    if not act.endswith(PER_GROUP) or group <= 0:
        codes, scale = quantise_rows(x, act.removesuffix(PER_GROUP))
        return (codes.to(torch.float32) * scale).to(x.dtype)
    rows, width = x.shape
    parts = F.pad(x, (0, -width % group)).reshape(-1, group)
    return round_rows(parts, act).reshape(rows, -1)[:, :width]


def quantise_rows(x: Tensor, act: str) -> tuple[Tensor, Tensor]:
    """x [rows, in] -> (codes [rows, in] of dtype act, scale float32 [rows, 1]). A row's scale is its largest
    magnitude over the largest of the type, 1 for a row of zeros. Codes are the nearest (ties to even) of x / scale."""
    kind = getattr(torch, act)
    top = 127.0 if act == "int8" else torch.finfo(kind).max
    wide = x.to(torch.float32)
    scale = wide.abs().amax(-1, keepdim=True) / top
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    codes = wide / scale
    return (torch.round(codes) if act == "int8" else codes).clamp(-top, top).to(kind), scale


KV_DTYPES = ("float8_e4m3fn", "float8_e5m2", "int8")
"""Types that a KV cache may hold instead of the model's dtype."""


def encode_kv(x: Tensor, kv_dtype: str) -> Tensor:
    """Keys or values [..., D] as a cache of this `AttnSpec.kv_dtype` keeps them: [..., D]. For int8
    [..., D + SCALE_BYTES]: codes, then the bytes of their scale."""
    if kv_dtype not in KV_DTYPES:
        return x
    if kv_dtype == "int8":
        codes, scale = quantise_rows(x, kv_dtype)
        return torch.cat([codes, scale.view(torch.int8)], -1)
    kind = getattr(torch, kv_dtype)
    top = torch.finfo(kind).max
    return x.clamp(-top, top).to(kind)


def decode_kv(held: Tensor, kv_dtype: str, dtype: torch.dtype) -> Tensor:
    """What `encode_kv` made -> [..., D], codes times scale in float32 and rounded to dtype."""
    if kv_dtype != "int8":
        return held.to(dtype)
    codes, scale = held[..., :-SCALE_BYTES].to(torch.float32), held[..., -SCALE_BYTES:].contiguous().view(torch.float32)
    return (codes * scale).to(dtype)


def at_rest(w: QTensor) -> dict[str, Tensor]:
    """The data of a quantised QTensor as bodies keep it. 4-bit codes lie two to a byte, the first in the lower half
    ("pairs", u8 [out, in / 2], of floats "float_pairs"). So a 4-bit file stays 4-bit in memory. An odd row stays as
    it is."""
    data = dict(w.data)
    if w.format.bits != 4 or w.shape[1] % 2:
        return data
    codes = data.pop("codes")
    if w.format.kind == "float":
        x = codes.to(torch.float32)
        level = torch.bucketize(x.abs(), torch.tensor(E2M1, device=x.device))
        bits = (level + 8 * torch.signbit(x)).to(torch.uint8)
    else:
        bits = codes.view(torch.uint8) & 15
    data["float_pairs" if w.format.kind == "float" else "pairs"] = bits[:, ::2] | (bits[:, 1::2] << 4)
    return data


def _codes(data: Mapping[str, Tensor]) -> Tensor:
    """Codes [out, in] in float32, however they are kept."""
    if "codes" in data:
        return data["codes"].to(torch.float32)
    pairs = data["pairs"] if "pairs" in data else data["float_pairs"]
    bits = torch.stack([pairs & 15, pairs >> 4], -1).flatten(-2).to(torch.int32)
    if "float_pairs" in data:
        return torch.tensor((*E2M1, *(-x for x in E2M1)), device=pairs.device)[bits]
    return (bits if data.keys() & {"zeros", "mins"} else bits - 16 * (bits >> 3)).to(torch.float32)


def dequantise(data: Mapping[str, Tensor], group: int, dtype: torch.dtype) -> Tensor:
    """The data of a quantised QTensor with this group, or what `at_rest` made of it -> weight [out, in]."""
    codes = _codes(data)
    fan_in = codes.shape[1]
    if "zeros" in data:
        codes = codes - _per_input(data["zeros"], group, fan_in)
    scales = data["scales"].to(torch.float32) * data["scale"] if "scale" in data else data["scales"]
    weight = codes * _per_input(scales, group, fan_in)
    if "mins" in data:
        weight = weight - _per_input(data["mins"], group, fan_in)
    return weight.to(dtype)


def _per_input(groups: Tensor, group: int, fan_in: int) -> Tensor:
    """[out, groups] -> [out, in] in float32. One value for all inputs stays as it is."""
    groups = groups.to(torch.float32)
    return groups if group <= 0 else groups.repeat_interleave(group, dim=1)[:, :fan_in]


def quantise(weight: Tensor, format: WeightFormat) -> QTensor:
    """A dense weight [out, in] rounded to nearest in this format. Scales come from each group's largest magnitude
    (symmetric) or its range, zero included (not symmetric). A minimum is the range's lower end.
    kind "float" with 4 bits rounds scales up to powers of two, the scales of MX formats. The rule of their
    specification rounds down, and clamps what then exceeds the last level. With `scale_dtype` scales are rounded to
    its nearest, as NVFP4 does. A scale of the tensor then puts the largest of them at the end of that type."""
    out, fan_in = weight.shape
    size = {0: fan_in, -1: fan_in}.get(format.group, format.group)
    groups = -(-fan_in // size)
    wide, missing = weight.to(torch.float32), groups * size - fan_in
    wide = (F.pad(wide, (0, missing)) if missing else wide).reshape(out, groups, size)
    data = _float_codes(wide, format) if format.kind == "float" else _int_codes(wide, format)
    data["codes"] = data["codes"].reshape(out, groups * size)[:, :fan_in].contiguous()
    return QTensor(format, (out, fan_in), data)


def _int_codes(wide: Tensor, format: WeightFormat) -> dict[str, Tensor]:
    """Whole checkpoints go through here: each result is worked on in place, `wide` itself is left as it is."""
    if format.symmetric:
        top = (1 << (format.bits - 1)) - 1
        scales = _nonzero(_largest(wide, format) / top)
        codes = (wide / scales[..., None]).round_().clamp_(-top - 1, top)
        return {"codes": codes.to(torch.int8), "scales": scales}
    top = (1 << format.bits) - 1
    low, high = wide.amin(-1).clamp(max=0), wide.amax(-1).clamp(min=0)
    scales = _nonzero((high - low) / top)
    if format.mins:
        codes = (wide - low[..., None]).div_(scales[..., None]).round_().clamp_(0, top)
        return {"codes": codes.to(torch.uint8), "scales": scales, "mins": -low}
    zeros = torch.round(-low / scales)
    codes = (wide / scales[..., None]).round_().add_(zeros[..., None]).clamp_(0, top)
    return {"codes": codes.to(torch.uint8), "scales": scales, "zeros": zeros.to(torch.uint8)}


def _float_codes(wide: Tensor, format: WeightFormat) -> dict[str, Tensor]:
    if format.bits == 8:
        scales = _nonzero(_largest(wide, format) / torch.finfo(torch.float8_e4m3fn).max)
        return {"codes": (wide / scales[..., None]).to(torch.float8_e4m3fn), "scales": scales}
    whole: dict[str, Tensor] = {}
    if format.scale_dtype:
        kind = getattr(torch, format.scale_dtype)
        ends = torch.finfo(kind)
        want = _largest(wide, format) / E2M1[-1]
        whole["scale"] = _nonzero(want.amax().reshape(1, 1) / ends.max)
        held = (want / whole["scale"]).clamp(ends.smallest_normal * ends.eps, ends.max).to(kind)
        scales = held.to(torch.float32) * whole["scale"]
    else:
        held = scales = torch.exp2(torch.ceil(torch.log2(_nonzero(_largest(wide, format) / E2M1[-1]))))
    levels = torch.tensor(E2M1)
    # To the nearer of two neighbours. A value in the middle goes to the one whose last bit is 0.
    below = torch.bucketize((wide / scales[..., None]).abs(), levels, right=True).sub(1).clamp(0, len(E2M1) - 2)
    x = (wide / scales[..., None]).abs()
    middle = (levels[below] + levels[below + 1]) / 2
    up = (x > middle) | ((x == middle) & (below % 2 == 1))
    codes = torch.where(up, levels[below + 1], levels[below]) * wide.sign()
    return {"codes": codes.to(torch.float8_e4m3fn), "scales": held, **whole}


def _largest(wide: Tensor, format: WeightFormat) -> Tensor:
    """[out, groups], or [1, 1] for one scale of the whole tensor."""
    top = torch.maximum(wide.amax(-1), -wide.amin(-1))
    return top.amax().reshape(1, 1) if format.group == -1 else top


def _nonzero(scales: Tensor) -> Tensor:
    return torch.where(scales > 0, scales, torch.ones_like(scales))
