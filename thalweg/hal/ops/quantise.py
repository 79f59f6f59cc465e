"""Rounding: weights to codes, scales and zeros and back, and rows of activations to codes. Definitions, not fast paths."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from thalweg.hal.kv import SCALE_BYTES
from thalweg.hal.weights import QTensor, WeightFormat

PER_GROUP, STATIC = "_per_group", "_static"
"""End the name of a `WeightFormat.act` that rounds by groups, or by a scale that the checkpoint has."""
PER = "_per_"
"""Comes before the number of inputs that share a scale: "float8_e4m3fn_per_128"."""
UP_TO = "_upto"
"""Comes before the largest magnitude that counts: "float8_e4m3fn_upto1200.0"."""
KEEP = "_keep"
"""Comes before the number of inputs of a row that may keep their values: "int8_keep4"."""
EVEN, UP = "_even", "_up"
"""Suffixes of an act with scales of powers of two: the nearest, where 1.75 counts as 2, or the next above."""
BLOCKS = {"mxfp8": (32, 448.0), "mxfp4": (32, 6.0), "nvfp4": (16, 6.0)}
"""Kinds of `WeightFormat.act` with a fixed group: its inputs, and the largest value of the type."""
FITTED, FIT_STEPS, COLUMNS = (16, 32), (15.0, 16.25, 17.5), 16
"""Groups with fitted scales and zero points: their inputs, tried numbers of steps from the least value to the largest, and
inputs summed side by side."""
FEW_ERROR = 0.05
"""Of a step: the error of values that are a scale times integers already, where the files hold 16 bits, is less."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the 4-bit float (OCP Microscaling Formats, 1.0)."""


def round_rows(x: Tensor, act: str, group: int = 0, scale: Tensor | None = None) -> Tensor:
    """x [rows, in] -> the same, rounded to codes of `act` and back, in x's dtype. group: of the weight. scale: the static one
    of the inputs, float32 [1, 1].

    "mxfp8" and "mxfp4" round by groups of 32. Their scale is the power of two below the largest magnitude over that of the
    type's largest exponent (OCP Microscaling Formats 1.0, 6.3). With "_even" the largest magnitude is rounded to a power of
    two first, up from 1.75 times one on (compressed-tensors, Quark). With "_up" the scale is the power of two above largest
    over the type's largest value, so that nothing is clamped (ModelOpt). "nvfp4" rounds by groups of 16: scales are the
    nearest float8 of largest / 6 / scale, times scale."""
    block, _, rule = act.partition("_")
    if block in BLOCKS:
        return _by_blocks(x, block, rule, scale)
    kind, _, most = act.partition(UP_TO)
    kind, _, size = kind.partition(PER)
    if size and (size != "group" or group > 0):
        return _in_groups(x, group if size == "group" else int(size), lambda parts: round_rows(parts, kind))
    if kind.endswith(STATIC):
        assert scale is not None, act
        codes = _nearest(x.to(torch.float32) / scale, kind.removesuffix(STATIC))
        return (codes.to(torch.float32) * scale).to(x.dtype)
    kind, _, kept = kind.partition(KEEP)
    if kept:
        return _round_most(x, kind, int(kept))
    codes, own = quantise_rows(x, kind, float(most) if most else None)
    return (codes.to(torch.float32) * own).to(x.dtype)


def _round_most(x: Tensor, act: str, kept: int) -> Tensor:
    """x [rows, in], each row rounded by its (kept + 1)-th largest magnitude. Inputs above that keep their values: a few
    outliers make up most of the error of rows with one scale (Dettmers et al. 2022)."""
    size = x.to(torch.float32).abs()
    limit = size.topk(kept + 1, -1).values[..., -1:] if x.shape[-1] > kept else torch.zeros_like(size[..., :1])
    over = size > limit
    return torch.where(over, x, round_rows(x.masked_fill(over, 0), act))


def quantise_rows(x: Tensor, act: str, most: float | None = None) -> tuple[Tensor, Tensor]:
    """x [rows, in] -> (codes [rows, in] of dtype act, scale float32 [rows, 1]). A row's scale is its largest
    magnitude (or `most`, if less) over the largest of the type, 1 for a row of zeros. Codes are the nearest (ties to
    even) of x / scale, clamped to the type's largest. Of "int4" (int8 codes) the scale is largest / 7.5, and -8 is
    a code: half a step is lost at the upper end, as compressed-tensors has it."""
    wide = x.to(torch.float32)
    largest = wide.abs().amax(-1, keepdim=True)
    scale = (largest if most is None else largest.clamp(max=most)) / _top(act)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return _nearest(wide / scale, act), scale


def _top(act: str) -> float:
    return {"int8": 127.0, "int4": 7.5}.get(act) or torch.finfo(getattr(torch, act)).max


def _nearest(codes: Tensor, act: str) -> Tensor:
    if act.startswith("int"):
        top = float((1 << int(act[3:]) - 1) - 1)
        return torch.round(codes).clamp(-top - (act == "int4"), top).to(torch.int8)
    top = _top(act)
    return codes.clamp(-top, top).to(getattr(torch, act))


def _in_groups(x: Tensor, group: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    """x [rows, in], changed as [rows * groups, group]. A short last group is padded with zeros."""
    rows, width = x.shape
    parts = F.pad(x, (0, -width % group)).reshape(-1, group)
    return change(parts).reshape(rows, -1)[:, :width]


def _by_blocks(x: Tensor, act: str, rule: str, scale: Tensor | None) -> Tensor:
    size, top = BLOCKS[act]

    def round_group(parts: Tensor) -> Tensor:
        wide = parts.to(torch.float32)
        largest = wide.abs().amax(-1, keepdim=True)
        if act == "nvfp4":
            assert scale is not None, act
            held = (largest / top / scale).clamp(max=torch.finfo(torch.float8_e4m3fn).max).to(torch.float8_e4m3fn)
            each = held.to(torch.float32) * scale
        else:
            each = _power(_nonzero(largest), top, rule)
        values = wide / _nonzero(each)
        result = _nearest(values, "float8_e4m3fn").to(torch.float32) if act == "mxfp8" else to_e2m1(values)
        return (result * each).to(parts.dtype)

    return _in_groups(x, size, round_group)


def _power(largest: Tensor, top: float, rule: str) -> Tensor:
    """The scale of groups with these largest magnitudes, for a type with the largest value top: a power of two."""
    exponent = math.frexp(top)[1]
    if rule == UP[1:]:
        fraction, power = torch.frexp(largest / top)
        power = power - (fraction == 0.5).to(power.dtype)
        return torch.ldexp(torch.ones_like(largest), power)
    fraction, power = torch.frexp(largest)
    if rule == EVEN[1:]:
        power = power + (fraction >= 0.875).to(power.dtype)
    return torch.ldexp(torch.ones_like(largest), power - exponent)


def to_e2m1(values: Tensor) -> Tensor:
    """The nearest 4-bit float, clamped to the largest. A value in the middle goes to the code with last bit 0."""
    levels = torch.tensor(E2M1, device=values.device)
    middles = (levels[1:] + levels[:-1]) / 2
    middles[1::2] = middles[1::2].nextafter(levels[0])  # above these the last bit is 0: the middle itself goes up
    return levels[torch.bucketize(values.abs(), middles, out_int32=True)] * values.sign()


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
    """Values from the codes of `encode_kv` -> [..., D], codes times scale in float32 and rounded to dtype."""
    if kv_dtype != "int8":
        return held.to(dtype)
    codes, scale = held[..., :-SCALE_BYTES].to(torch.float32), held[..., -SCALE_BYTES:].contiguous().view(torch.float32)
    return (codes * scale).to(dtype)


def at_rest(w: QTensor) -> dict[str, Tensor]:
    """The data of a quantised QTensor as bodies keep it. 4-bit codes are packed two to a byte, the first in the lower half
    ("pairs", u8 [out, in / 2], of floats "float_pairs"). A 4-bit file thus stays 4-bit in memory. An odd row stays as
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
    unsigned = data.keys() & {"zeros", "mins", "levels"}
    return (bits if unsigned else bits - 16 * (bits >> 3)).to(torch.float32)


def dequantise(data: Mapping[str, Tensor], group: int, dtype: torch.dtype) -> Tensor:
    """The data of a quantised QTensor with this group, or its form from `at_rest` -> weight [out, in]."""
    codes = _codes(data)
    if "levels" in data:
        codes = data["levels"].reshape(-1)[codes.to(torch.int32)]
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


def quantise(weight: Tensor, format: WeightFormat, top: Tensor | None = None) -> QTensor:
    """A dense weight [out, in] rounded to nearest in this format. Scales come from each group's largest magnitude
    (symmetric) or its range, zero included (not symmetric). They are bfloat16 for integers of 4 bits, and for groups with
    rounded inputs. Whole groups of up to 32 inputs in 4 bits with zero points have, of some scales and zero points, those with
    the least squared error (`_fit`). With minimums a range need not include zero. kind "float" with 4 bits rounds scales up to
    powers of two, the scales of MX formats. The rule of their specification rounds down, and clamps values beyond the last
    level. With `scale_dtype` scales are rounded to its nearest, as NVFP4 does. A scale of the tensor then puts the largest at
    the end of that type. With `code_bits` scales are float16, the best of some (`_few_codes`).
    top: the largest magnitude of that tensor, float32 [], where `weight` is only some of its rows."""
    out, fan_in = weight.shape
    size = {0: fan_in, -1: fan_in}.get(format.group, format.group)
    groups = -(-fan_in // size)
    wide, missing = weight.to(torch.float32), groups * size - fan_in
    wide = (F.pad(wide, (0, missing)) if missing else wide).reshape(out, groups, size)
    fits = format.bits == 4 and format.group in FITTED and groups > 1 and not missing
    make = {"float": _float_codes, "table": _table_codes}.get(format.kind, functools.partial(_int_codes, fits=fits))
    data = _float_codes(wide, format, top) if format.scale_dtype else make(wide, format)
    data["codes"] = data["codes"].reshape(out, groups * size)[:, :fan_in].contiguous()
    return QTensor(format, (out, fan_in), data)


def _int_codes(wide: Tensor, format: WeightFormat, fits: bool) -> dict[str, Tensor]:
    """Whole checkpoints go through here: each result is worked on in place, `wide` itself is left as it is."""
    if format.code_bits:
        return _few_codes(wide, format.code_bits)
    if format.symmetric:
        top = (1 << (format.bits - 1)) - 1
        scales = _scales(_largest(wide, format) / top, format)
        codes = (wide / scales[..., None]).round_().clamp_(-top - 1, top)
        return {"codes": codes.to(torch.int8), "scales": scales}
    top = (1 << format.bits) - 1
    if format.mins and not (fits and format.sixteenths):
        return _from_minimum(wide, format)
    low, high = wide.amin(-1).clamp(max=0), wide.amax(-1).clamp(min=0)
    if fits:
        return _fit(wide, low, high, format)
    scales = _scales((high - low) / top, format)
    zeros = torch.round(-low / scales)
    codes = (wide / scales[..., None]).round_().add_(zeros[..., None]).clamp_(0, top)
    return {"codes": codes.to(torch.uint8), "scales": scales, "zeros": zeros.to(torch.uint8)}


def _fit(wide: Tensor, low: Tensor, high: Tensor, format: WeightFormat) -> dict[str, Tensor]:
    """Groups [out, groups, inputs] of 4-bit codes with zero points, whole or in sixteenths: the best in squares of six tries.
    FIT_STEPS from the least value to the largest, where more than 15 clamp the outer ones, and for each the scale and the zero
    point that suit its codes best by least squares."""
    inputs, total, parts = wide.shape[-1], _sum_columns(wide), 16 if format.sixteenths else 1
    best = torch.full_like(total, math.inf), torch.ones_like(total), torch.zeros_like(total)
    for steps in FIT_STEPS:
        scales = ((high - low) / steps).to(torch.bfloat16).to(torch.float32)
        empty, scales = ~(scales > 0), _nonzero(scales)
        zeros = torch.round((7.5 - (high + low) * 0.5 / scales).clamp_(0, 15) * parts).div_(parts).masked_fill_(empty, 0)
        codes, error = _try(wide, scales, zeros, parts)
        best = _better(best, (error, scales, zeros))
        count, squares = codes.sum(-1), codes.square().sum(-1)
        spread = inputs * squares - count.square()
        slope = inputs * _sum_columns(codes * wide) - count * total
        fitted = (slope / spread).to(torch.bfloat16).to(torch.float32)
        usable = (spread > 0) & (fitted > 0)
        scales = torch.where(usable, fitted, scales)
        refined = torch.round(((count - total / scales) / inputs).clamp(0, 15) * parts) / parts
        zeros = torch.where(usable, refined, zeros)
        best = _better(best, (_try(wide, scales, zeros, parts)[1], scales, zeros))
    _, scales, zeros = best
    codes = _keep_sums(wide, _try(wide, scales, zeros, parts)[0], scales, zeros)
    offsets = {"mins": zeros * scales} if format.mins else {"zeros": zeros.to(torch.uint8)}
    return {"codes": codes.to(torch.uint8), "scales": scales, **offsets}


def _keep_sums(wide: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """Codes nearest to the middle between two become the other one, until the sum of each group is off by half a step at most
    (SQuant, Guo et al. 2022). Inputs of a layer have a common part, which is multiplied by such sums."""
    off = wide / scales[..., None] - (codes - zeros[..., None])
    lost = _sum_columns(off)[..., None]
    sign = torch.where(lost < 0, -1.0, 1.0)
    room = torch.where(sign < 0, codes > 0, codes < 15)
    order = torch.where(room, off * sign, -math.inf).argsort(stable=True, dim=-1, descending=True)
    rank = torch.empty_like(order).scatter_(-1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order))
    return codes + torch.where(room & (rank < torch.ceil(lost * sign - 0.5)), sign, 0.0)


def _try(wide: Tensor, scales: Tensor, zeros: Tensor, parts: int) -> tuple[Tensor, Tensor]:
    """Codes with these scales and zero points, and the squared error of each group. parts: of a step, in zero points."""
    steps = wide / scales[..., None]
    codes = steps.add_(zeros[..., None]).round_() if parts > 1 else steps.round_().add_(zeros[..., None])
    codes = codes.clamp_(0, 15)
    off = wide - (codes - zeros[..., None]) * scales[..., None]
    return codes, _sum_columns(off.square_())


def _better(old: tuple[Tensor, Tensor, Tensor], new: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Of tries (error, scales, zeros) the one with the smaller error, by groups."""
    nearer = new[0] < old[0]
    return torch.where(nearer, new[0], old[0]), torch.where(nearer, new[1], old[1]), torch.where(nearer, new[2], old[2])


def _sum_columns(x: Tensor) -> Tensor:
    """Sums over the last dimension, in an order that kernels have too: 16 columns, then halves."""
    parts: tuple[Tensor, ...] = x.reshape(*x.shape[:-1], -1, COLUMNS).unbind(-2)
    total: Tensor = functools.reduce(torch.add, parts)
    while (half := total.shape[-1] // 2) > 0:
        total = total[..., :half] + total[..., half:]
    return total[..., 0]


def _from_minimum(wide: Tensor, format: WeightFormat) -> dict[str, Tensor]:
    """Each group from its least value on, in 15 steps of 4 bits (255 of 8). Of 4 bits also in 14 to 8 steps where that is
    nearer: values that are integers times a scale already need not use all."""
    top = (1 << format.bits) - 1
    low, span = wide.amin(-1), wide.amax(-1) - wide.amin(-1)
    result: tuple[Tensor, Tensor, Tensor] | None = None
    for steps in range(top, top // 2 if format.bits == 4 else top - 1, -1):
        scales = _scales(span / steps, format)
        codes = (wide - low[..., None]).div_(scales[..., None]).round_().clamp_(0, top)
        error = (codes * scales[..., None]).add_(low[..., None]).sub_(wide).square_().sum(-1)
        if result is not None:
            least, old_scales, old_codes = result
            nearer = error < least
            codes = torch.where(nearer[..., None], codes, old_codes)
            error, scales = torch.where(nearer, error, least), torch.where(nearer, scales, old_scales)
        result = error, scales, codes
    assert result is not None
    return {"codes": result[2].to(torch.uint8), "scales": result[1], "mins": -low}


def _few_codes(wide: Tensor, bits: int) -> dict[str, Tensor]:
    """Groups [out, groups, inputs] of symmetric codes. The value of largest magnitude gets the lowest code, or one of up to
    half of it where that is nearer. Values that are integers times a scale already need not use all codes. Each scale is then
    fitted to its codes by least squares, as float16. Groups within FEW_ERROR of a step need no other try."""
    groups, low = wide.flatten(0, 1), -(1 << bits - 1)
    most = groups.gather(1, groups.abs().argmax(1, keepdim=True))
    most = torch.where(most == 0, 1.0, most)
    scales = most / low
    codes = (groups / scales).round_().clamp_(low, -low - 1)
    error = (codes * scales).sub_(groups).square_().sum(-1, keepdim=True)
    for code in range(low + 1, low // 2 + 1):
        left = (error > (FEW_ERROR * most / low).square() * groups.shape[1]).squeeze(1).nonzero().squeeze(1)
        if not len(left):
            break
        tried = most[left] / code
        result = (groups[left] / tried).round_().clamp_(low, -low - 1)
        off = (result * tried).sub_(groups[left]).square_().sum(-1, keepdim=True)
        nearer = off < error[left]
        error[left] = torch.where(nearer, off, error[left])
        scales[left], codes[left] = torch.where(nearer, tried, scales[left]), torch.where(nearer, result, codes[left])
    fitted = (codes * groups).sum(-1, keepdim=True) / codes.square().sum(-1, keepdim=True)
    scales = torch.where(groups.any(-1, keepdim=True), fitted, 1.0).to(torch.float16).to(torch.float32)
    return {"codes": codes.to(torch.int8).view_as(wide), "scales": scales.view(wide.shape[:-1])}


def _scales(scales: Tensor, format: WeightFormat) -> Tensor:
    """Scales of groups with rounded inputs, and of 4-bit codes, are bfloat16. The loss is small next to that of the codes, and
    memory is halved."""
    half = format.bits == 4 or format.act.endswith(PER_GROUP)
    return _nonzero(scales.to(torch.bfloat16).to(torch.float32) if half else scales)


def _table_codes(wide: Tensor, format: WeightFormat) -> dict[str, Tensor]:
    levels = torch.tensor(format.levels, device=wide.device)
    order = levels.argsort()
    middles = (levels[order][1:] + levels[order][:-1]) / 2
    scales = _nonzero(_largest(wide, format) / levels.abs().max())
    codes = order[torch.bucketize(wide / scales[..., None], middles)].to(torch.uint8)
    return {"codes": codes, "scales": scales, "levels": levels[None]}


def _float_codes(wide: Tensor, format: WeightFormat, top: Tensor | None = None) -> dict[str, Tensor]:
    if format.bits == 8:
        scales = _nonzero(_largest(wide, format) / torch.finfo(torch.float8_e4m3fn).max)
        return {"codes": (wide / scales[..., None]).to(torch.float8_e4m3fn), "scales": scales}
    whole: dict[str, Tensor] = {}
    if format.scale_dtype:
        kind = getattr(torch, format.scale_dtype)
        ends = torch.finfo(kind)
        want = _largest(wide, format) / E2M1[-1]
        most = want.amax() if top is None else top / E2M1[-1]
        whole["scale"] = _nonzero(most.reshape(1, 1) / ends.max).expand(len(want), 1).contiguous()
        held = (want / whole["scale"]).clamp(ends.smallest_normal * ends.eps, ends.max).to(kind)
        scales = held.to(torch.float32) * whole["scale"]
    else:
        held = scales = torch.exp2(torch.ceil(torch.log2(_nonzero(_largest(wide, format) / E2M1[-1]))))
    codes = to_e2m1(wide / scales[..., None])
    return {"codes": codes.to(torch.float8_e4m3fn), "scales": held, **whole}


def _largest(wide: Tensor, format: WeightFormat) -> Tensor:
    """[out, groups], or [1, 1] for one scale of the whole tensor."""
    top = torch.maximum(wide.amax(-1), -wide.amin(-1))
    return top.amax().reshape(1, 1) if format.group == -1 else top


def _nonzero(scales: Tensor) -> Tensor:
    return torch.where(scales > 0, scales, torch.ones_like(scales))
