"""Small numbers in registers: 4- and 8-bit codes to operands, and floats to 8-bit codes. Written out in integers and
float16 because not every target has every 8-bit type, and the compiler refuses the missing ones.

NATIVE names the 8-bit float with 4 bits of exponent that a target converts and multiplies itself, "" = none. With
float8_e4m3fnuz, memory still holds the codes of float8_e4m3fn. Read as fnuz, with an exponent smaller by one, a code is exactly
half its value, and the product doubles the sums (`is_fnuz`). Codes differ in two ways: 0x80 is NaN there and -0 here, and 0x7F
and 0xFF are 240 there and NaN here. Therefore -0 is held as 0 and NaN as 0x80 (`without_negative_zero`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def from_e4m3(bits, NATIVE: tl.constexpr):
    """uint8 codes of float8_e4m3fn -> float32, halved where `is_fnuz`."""
    if NATIVE != "":
        return as_native(bits, NATIVE).to(tl.float32)
    wide = bits.to(tl.uint16)
    half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)  # the same fields in float16, with an exponent larger by 8
    value = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((wide & 0x7F) == 0x7F, float("nan"), value)


@triton.jit
def as_native(bits, NATIVE: tl.constexpr):
    """Codes, uint8 or of the target's own type, as that type."""
    if bits.dtype != tl.uint8:
        return bits
    elif NATIVE == "float8_e4m3fnuz":
        return bits.to(tl.float8e4b8, bitcast=True)
    else:
        return bits.to(tl.float8e4nv, bitcast=True)


@triton.constexpr_function
def is_fnuz(NATIVE):
    """Do codes of float8_e4m3fn read as half their values?"""
    return NATIVE == "float8_e4m3fnuz"


@triton.jit
def from_e5m2(bits):
    """uint8 codes of float8_e5m2, which are the upper halves of float16 -> float32."""
    return (bits.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _to_float8(x, MANTISSA: tl.constexpr, BIAS: tl.constexpr, TOP: tl.constexpr):
    """float32 -> codes of an 8-bit float, to the nearest (ties to even), cut off at the largest, with the code TOP."""
    bits = x.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    drop: tl.constexpr = 23 - MANTISSA
    rounded = (size + ((1 << (drop - 1)) - 1) + ((size >> drop) & 1)) >> drop
    normal = rounded.to(tl.int32) - ((127 - BIAS) << MANTISSA)
    # Below the smallest normal number codes count in steps of 2**(1 - BIAS - MANTISSA).
    small = tl.minimum(tl.abs(x), 1.0) * (1 << (BIAS - 1 + MANTISSA))
    even = ((small + 12582912.0) - 12582912.0).to(tl.int32)
    code = tl.where(size < ((128 - BIAS) << 23), even, tl.minimum(normal, TOP))
    code = tl.where(size > 0x7F800000, 0x7F, code)
    return (code | (bits >> 24).to(tl.int32) & 0x80).to(tl.uint8)


@triton.jit
def to_e4m3(x, NATIVE: tl.constexpr):
    """float32 -> codes of float8_e4m3fn, as memory holds them for this target."""
    if NATIVE == "float8_e4m3fn":
        return tl.clamp(x, -448.0, 448.0, tl.PropagateNan.ALL).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    code = _to_float8(x, 3, 7, 0x7E)
    if is_fnuz(NATIVE):
        code = tl.where((code & 0x7F) == 0x7F, 0x80, tl.where(code == 0x80, 0, code)).to(tl.uint8)
    return code


def to_e8m0(scales: Tensor) -> Tensor | None:
    """Float32 [groups, out] -> exponents of four groups int32 [groups / 4, out] as `from_e8m0` reads them, or None where one is
    no power of two. Missing values count as powers of two."""
    bits = scales.contiguous().view(torch.int32)
    exponents = bits >> 23
    if not bits.is_meta and not bool(((bits > 0) & (bits & 0x7FFFFF == 0) & (exponents < 255)).all()):
        return None
    full = torch.nn.functional.pad(exponents, (0, 0, 0, -len(bits) % 4)).view(-1, 4, bits.shape[1])
    return full[:, 0] | full[:, 1] << 8 | full[:, 2] << 16 | full[:, 3] << 24


def without_negative_zero(codes: Tensor) -> Tensor:
    """uint8 codes of float8_e4m3fn as a target of float8_e4m3fnuz holds them."""
    codes = codes.masked_fill(codes == 0x80, 0)
    return codes.masked_fill((codes & 0x7F) == 0x7F, 0x80)


@triton.jit
def to_e5m2(x):
    return _to_float8(x, 2, 15, 0x7B)


@triton.jit
def twice_e2m1(nibbles):
    """4-bit floats in int32 -> twice their values, in float32. Sign, exponent and mantissa go to float32's places, with an
    exponent larger by 126. The factor makes up for that. Values without an exponent here have none there."""
    bits = ((nibbles & 8) << 28) | ((nibbles & 7) << 22)
    return bits.to(tl.float32, bitcast=True) * 1.7014118346046923e38


@triton.jit
def from_e8m0(codes, Q: tl.constexpr):
    """Byte Q of int32, an exponent with a bias of 127, of 1 to 254 -> float32. 0 is 0."""
    return (((codes >> (8 * Q)) & 255) << 23).to(tl.float32, bitcast=True)


@triton.jit
def small_numbers(codes, zero):
    """int32 of 0 to 255 -> codes - zero in float32, zero float32 of less than 2**22. The codes become the last bits of 2**23's
    float, as conversions of integers are slow."""
    return (codes | 0x4B000000).to(tl.float32, bitcast=True) - (zero + 8388608.0)


@triton.jit
def nearest(x):
    """float32 of less than 2**22 -> the nearest integer, ties to even."""
    return (x + 12582912.0) - 12582912.0


@triton.constexpr_function
def write_pairs(kind, dtype, q):
    """PTX of `of_four`, of quarter q: $0 = two numbers of $1, two words. $2 (int4): the number added to them. dtype: bf16,
    f16."""
    half = dtype == "f16"
    if kind == "int4":  # the code becomes the last bits of 128 or 1024
        bits, one = ("0x64006400", "0x3C003C00") if half else ("0x43004300", "0x3F803F80")
        text = (
            f"shr.u32 t, $1, {4 * q}; lop3.b32 t, t, 0x000F000F, {bits}, 0xEA; mov.b32 c, {one}; fma.rn.{dtype}x2 $0, t, c, $2;"
        )
    else:  # sign, exponent and mantissa go to their places; the factor makes up for the exponent's bias
        up = (9 if half else 6) - 4 * q
        shift = f"shl.b32 t, $1, {up}" if up > 0 else f"shr.u32 t, $1, {-up}"
        mask, factor = ("0x0E000E00", "0x74007400") if half else ("0x01C001C0", "0x7E807E80")
        text = f"{shift}; and.b32 t, t, {mask}; shl.b32 u, $1, {12 - 4 * q}; lop3.b32 t, u, 0x80008000, t, 0xEA;"
        text += f"mov.b32 c, {factor}; mov.b32 z, 0x80008000; fma.rn.{dtype}x2 $0, t, c, z;"
    return "{ .reg .b32 t, u, c, z;" + text + "}"


@triton.jit
def of_four(
    word, zero, kind, Q: tl.constexpr, KIND: tl.constexpr, PAIRED: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):  # fmt: skip
    """int16 words [N, K] of four codes each -> numbers of type `kind` of quarter Q. int4: without zero int32 [N]; otherwise
    4-bit floats. PAIRED: by NVIDIA's instructions for two numbers of 16 bits, where kind has as many."""
    if PAIRED and kind == tl.bfloat16:
        if KIND == "int4":
            above = tl.broadcast_to((-128 - zero).to(kind)[:, None], [N, K])
            number = tl.inline_asm_elementwise(write_pairs(KIND, "bf16", Q), "=r,r,r", [word, above], tl.bfloat16, True, 2)
        else:
            number = tl.inline_asm_elementwise(write_pairs(KIND, "bf16", Q), "=r,r", [word], tl.bfloat16, True, 2)
    elif PAIRED and kind == tl.float16:
        if KIND == "int4":
            above = tl.broadcast_to((-1024 - zero).to(kind)[:, None], [N, K])
            number = tl.inline_asm_elementwise(write_pairs(KIND, "f16", Q), "=r,r,r", [word, above], tl.float16, True, 2)
        else:
            number = tl.inline_asm_elementwise(write_pairs(KIND, "f16", Q), "=r,r", [word], tl.float16, True, 2)
    else:
        nibble = (word.to(tl.int32) >> (4 * Q)) & 15
        if KIND == "int4":
            number = small_numbers(nibble, zero.to(tl.float32)[:, None]).to(kind)
        else:
            number = (twice_e2m1(nibble) * 0.5).to(kind)
    return number


@triton.constexpr_function
def write_scaled_pairs(dtype, q):
    """PTX of `of_scaled`, of quarter q: $0 = two numbers of $1, two words. $2: the number added to the codes, which makes them
    exact. $3, $4: a scale and its remainder."""
    bits, one = ("0x64006400", "0x3C003C00") if dtype == "f16" else ("0x43004300", "0x3F803F80")
    code = f"shr.u32 t, $1, {4 * q}; lop3.b32 t, t, 0x000F000F, {bits}, 0xEA; mov.b32 c, {one}; fma.rn.{dtype}x2 t, t, c, $2;"
    product = f"mov.b32 z, 0x80008000; fma.rn.{dtype}x2 u, t, $4, z; fma.rn.{dtype}x2 $0, t, $3, u;"
    return "{ .reg .b32 t, u, c, z;" + code + product + "}"


@triton.jit
def of_scaled(
    word, zero, scale, kind, Q: tl.constexpr, PAIRED: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):  # fmt: skip
    """int16 words [N, K] of four codes each -> numbers of type `kind` of quarter Q, without zero int32 [N], times scale float32
    [N]. Where two numbers are made at once, the scale is a number of that type and a remainder. A product of a code with the
    remainder is rounded before it is added, far below the last bit of the result."""
    high = scale.to(kind)
    low = (scale - high.to(tl.float32)).to(kind)
    highs, lows = tl.broadcast_to(high[:, None], [N, K]), tl.broadcast_to(low[:, None], [N, K])
    if PAIRED and kind == tl.bfloat16:
        above = tl.broadcast_to((-128 - zero).to(kind)[:, None], [N, K])
        number = tl.inline_asm_elementwise(
            write_scaled_pairs("bf16", Q), "=r,r,r,r,r", [word, above, highs, lows], tl.bfloat16, True, 2
        )
    elif PAIRED and kind == tl.float16:
        above = tl.broadcast_to((-1024 - zero).to(kind)[:, None], [N, K])
        number = tl.inline_asm_elementwise(
            write_scaled_pairs("f16", Q), "=r,r,r,r,r", [word, above, highs, lows], tl.float16, True, 2
        )
    else:
        nibble = (word.to(tl.int32) >> (4 * Q)) & 15
        number = (small_numbers(nibble, zero.to(tl.float32)[:, None]) * scale[:, None]).to(kind)
    return number
