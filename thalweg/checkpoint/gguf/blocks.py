"""Decodes blocks of quantised values to integer codes, scales and minimums: value = code * scale - min. The float32 values
equal those of the `gguf` package and llama.cpp bit for bit. One function per type. Numpy only. The layouts are those of
llama.cpp's `ggml-common.h`, where "d" is a scale and "m" a minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from thalweg.checkpoint.gguf.grids import grid, signs
from thalweg.checkpoint.gguf.types import TYPES, Type


@dataclass(frozen=True, slots=True)
class Codes:
    """Decoded blocks. codes: int8 [blocks, values], or uint8 with mins. scales, mins: float32 [blocks, groups]."""

    codes: np.ndarray
    scales: np.ndarray
    mins: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """The decoded form of a type."""

    bits: int
    """Bits of a code."""
    group: int
    """Values that share a scale."""
    decode: Callable[[np.ndarray], Codes]
    """uint8 [blocks, bytes per block] -> codes."""
    mins: bool = False


CHUNK = 1 << 18
"""Bytes decoded at once, so that intermediate arrays stay in cache."""


def decode_blocks(kind: Type, raw: np.ndarray) -> Codes:
    """Decodes whole rows, uint8 [rows, bytes of a row], to codes [rows, values], and scales and mins [rows, groups]."""
    layout, blocks = LAYOUTS[kind.name], np.ascontiguousarray(raw).reshape(-1, kind.bytes)
    groups = kind.values // layout.group
    codes = np.empty((len(blocks), kind.values), np.uint8 if layout.mins else np.int8)
    scales = np.empty((len(blocks), groups), np.float32)
    mins = np.empty_like(scales) if layout.mins else None
    step = max(1, CHUNK // kind.bytes)
    with np.errstate(invalid="ignore"):  # scales may be NaN
        for i in range(0, len(blocks), step):
            result = layout.decode(blocks[i : i + step])
            codes[i : i + step], scales[i : i + step] = result.codes, result.scales
            if mins is not None:
                mins[i : i + step] = result.mins
    rows = len(raw)
    return Codes(codes.reshape(rows, -1), scales.reshape(rows, -1), None if mins is None else mins.reshape(rows, -1))


def dense(kind: Type, raw: np.ndarray) -> np.ndarray:
    """Decodes whole rows to float32 [rows, values]."""
    result, group = decode_blocks(kind, raw), LAYOUTS[kind.name].group
    values = result.codes.reshape(len(raw), -1, group).astype(np.float32)
    with np.errstate(invalid="ignore"):
        values *= result.scales[..., None]
        if result.mins is not None:
            values -= result.mins[..., None]
    flat: np.ndarray = values.reshape(len(raw), -1)
    return flat


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at this byte of each block, as float32 [blocks, 1]."""
    found: np.ndarray = np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)
    return found


def _parts(x: np.ndarray, width: int) -> list[np.ndarray]:
    """Splits unsigned integers into fields of `width` bits, the lowest first. One array per field, as numpy is fast on whole
    arrays."""
    mask = x.dtype.type((1 << width) - 1)
    return [x >> x.dtype.type(shift) & mask for shift in range(0, 8 * x.itemsize, width)]


def _bits(x: np.ndarray, width: int) -> np.ndarray:
    """[..., n] of unsigned integers -> [..., n, parts], each of `width` bits, the lowest first."""
    return np.stack(_parts(x, width), -1)


def _planes(x: np.ndarray, run: int, width: int) -> np.ndarray:
    """uint8 [blocks, n] -> [blocks, n * 8 / width]: for each run of bytes, first all lowest fields, then all next ones."""
    parts = _parts(np.ascontiguousarray(x).reshape(len(x), -1, run), width)
    return np.stack(parts, 2).reshape(len(x), -1)


def _words(x: np.ndarray, kind: str) -> np.ndarray:
    return np.ascontiguousarray(x).view(kind)


# ------------------------------------------------------------------ one scale for each block


def _q4_0(b: np.ndarray) -> Codes:
    return Codes(_planes(b[:, 2:], 16, 4).view(np.int8) - np.int8(8), _half(b, 0))


def _q4_1(b: np.ndarray) -> Codes:
    return Codes(_planes(b[:, 4:], 16, 4), _half(b, 0), -_half(b, 2))


def _fifth_bits(b: np.ndarray) -> np.ndarray:
    """The fifth bits of 32 values, from four bytes."""
    return _bits(b, 1).reshape(len(b), -1) << np.uint8(4)


def _q5_0(b: np.ndarray) -> Codes:
    codes = _planes(b[:, 6:], 16, 4) | _fifth_bits(b[:, 2:6])
    return Codes(codes.view(np.int8) - np.int8(16), _half(b, 0))


def _q5_1(b: np.ndarray) -> Codes:
    return Codes(_planes(b[:, 8:], 16, 4) | _fifth_bits(b[:, 4:8]), _half(b, 0), -_half(b, 2))


def _q8_0(b: np.ndarray) -> Codes:
    return Codes(_words(b[:, 2:], "i1"), _half(b, 0))


def _q1_0(b: np.ndarray) -> Codes:
    return Codes(_bits(b[:, 2:], 1).reshape(len(b), -1).view(np.int8) * np.int8(2) - np.int8(1), _half(b, 0))


def _q2_0(b: np.ndarray) -> Codes:
    return Codes(_bits(b[:, 2:], 2).reshape(len(b), -1).view(np.int8) - np.int8(1), _half(b, 0))


def _tq1_0(b: np.ndarray) -> Codes:
    """A byte has five base-3 digits as a fraction of 256. Multiplying it by 3 moves the next digit to the top."""

    def digits(part: np.ndarray, run: int, count: int) -> np.ndarray:
        powers = np.array([3**i for i in range(count)], np.uint8)[:, None]
        shifted = part.reshape(len(part), -1, 1, run) * powers
        return (shifted.astype(np.uint16) * 3 >> 8).reshape(len(part), -1)

    result = np.concatenate([digits(b[:, :32], 32, 5), digits(b[:, 32:48], 16, 5), digits(b[:, 48:52], 4, 4)], 1)
    return Codes(result.astype(np.int8) - np.int8(1), _half(b, 52))


def _tq2_0(b: np.ndarray) -> Codes:
    return Codes(_planes(b[:, :64], 32, 2).view(np.int8) - np.int8(1), _half(b, 64))


# ------------------------------------------------------------------ blocks of 256 with inner scales


def _q2_k(b: np.ndarray) -> Codes:
    d, dmin = _half(b, 80), _half(b, 82)
    return Codes(
        _planes(b[:, 16:80], 32, 2), d * (b[:, :16] & 15).astype(np.float32), dmin * (b[:, :16] >> 4).astype(np.float32)
    )


def _q3_k(b: np.ndarray) -> Codes:
    low = _planes(b[:, 96:104], 8, 4)
    high = _bits(b[:, 104:108], 2).swapaxes(-1, -2).reshape(len(b), 16)
    scales = (low | high << np.uint8(4)).view(np.int8) - np.int8(32)
    unset = _planes(b[:, :32], 32, 1) ^ np.uint8(1)  # the mask marks values without the subtraction
    codes = _planes(b[:, 32:96], 32, 2).view(np.int8) - (unset << np.uint8(2)).view(np.int8)
    return Codes(codes, _half(b, 108) * scales.astype(np.float32))


def _scales_of_k(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Twelve bytes -> eight scales and eight minimums of six bits."""
    a, b, c = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([a & 63, c & 15 | a >> 2 & 48], 1)
    mins = np.concatenate([b & 63, c >> 4 | b >> 2 & 48], 1)
    return scales.astype(np.float32), mins.astype(np.float32)


def _q4_k(b: np.ndarray) -> Codes:
    scales, mins = _scales_of_k(b[:, 4:16])
    return Codes(_planes(b[:, 16:], 32, 4), _half(b, 0) * scales, _half(b, 2) * mins)


def _q5_k(b: np.ndarray) -> Codes:
    scales, mins = _scales_of_k(b[:, 4:16])
    codes = _planes(b[:, 48:], 32, 4) | _planes(b[:, 16:48], 32, 1) << np.uint8(4)
    return Codes(codes, _half(b, 0) * scales, _half(b, 2) * mins)


def _q6_k(b: np.ndarray) -> Codes:
    codes = _planes(b[:, :128], 64, 4) | _planes(b[:, 128:192], 32, 2) << np.uint8(4)
    scales = _words(b[:, 192:208], "i1").astype(np.float32)
    return Codes(codes.view(np.int8) - np.int8(32), _half(b, 208) * scales)


# ------------------------------------------------------------------ codebooks of 16 entries

_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
_E2M1_TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def _iq4_nl(b: np.ndarray) -> Codes:
    return Codes(_NL[_planes(b[:, 2:], 16, 4)], _half(b, 0))


def _iq4_xs(b: np.ndarray) -> Codes:
    high = _bits(_words(b[:, 2:4], "<u2"), 2).reshape(len(b), 8).astype(np.uint8)
    scales = (_bits(b[:, 4:8], 4).reshape(len(b), 8) | high << np.uint8(4)).view(np.int8) - np.int8(32)
    return Codes(_NL[_planes(b[:, 8:], 16, 4)], _half(b, 0) * scales.astype(np.float32))


def _mxfp4(b: np.ndarray) -> Codes:
    """The scale is a power of two, halved here, as codes are twice the 4-bit float."""
    e = b[:, :1].astype(np.uint32)
    bits = np.where(e < 2, np.uint32(0x00200000) << np.minimum(e, 1), (np.maximum(e, 1) - 1) << 23).astype(np.uint32)
    return Codes(_E2M1_TWICE[_planes(b[:, 1:], 16, 4)], bits.view(np.float32))


def _nvfp4(b: np.ndarray) -> Codes:
    """Scales are unsigned 8-bit floats (e4m3), halved as in `_mxfp4`."""
    x = b[:, :4]
    exponent, fraction = (x >> 3 & 15).astype(np.int32), (x & 7).astype(np.float32)
    normal = np.ldexp(1 + fraction / np.float32(8), exponent - 8)
    scales = np.where(exponent == 0, fraction * np.float32(2**-10), normal)
    return Codes(_E2M1_TWICE[_planes(b[:, 4:], 8, 4)], np.where(x == 0x7F, np.float32(0), scales).astype(np.float32))


# ------------------------------------------------------------------ grid points (IQ types)


def _quarter(d: np.ndarray, scales: np.ndarray, share: float = 0.25) -> np.ndarray:
    result: np.ndarray = d * (np.float32(0.5) + scales.astype(np.float32)) * np.float32(share)
    return result


def _nibbles(x: np.ndarray) -> np.ndarray:
    return _bits(x, 4).reshape(len(x), -1)


def _apply_signs(points: np.ndarray, sign: np.ndarray) -> np.ndarray:
    result: np.ndarray = points.reshape(len(points), -1) * sign.reshape(len(points), -1)
    return result


def _stored_signs(x: np.ndarray) -> np.ndarray:
    """One bit per value: 1 is minus."""
    result: np.ndarray = np.int8(1) - np.int8(2) * _bits(x, 1).reshape(len(x), -1).view(np.int8)
    return result


def _packed_signs(words: np.ndarray) -> np.ndarray:
    """Signs from four 7-bit fields of each 32-bit word."""
    index = words[..., None] >> np.array([0, 7, 14, 21], np.uint32) & 127
    result: np.ndarray = signs()[index].reshape(len(words), -1)
    return result


def _iq2_xxs(b: np.ndarray) -> Codes:
    words = _words(b[:, 2:], "<u4").reshape(len(b), 8, 2)
    points = grid("IQ2_XXS")[_words(words[..., 0], "u1").reshape(len(b), -1)]
    return Codes(_apply_signs(points, _packed_signs(words[..., 1])), _quarter(_half(b, 0), words[..., 1] >> 28))


def _iq2_xs(b: np.ndarray) -> Codes:
    q = _words(b[:, 2:66], "<u2")
    return Codes(_apply_signs(grid("IQ2_XS")[q & 511], signs()[q >> 9]), _quarter(_half(b, 0), _nibbles(b[:, 66:])))


def _iq2_s(b: np.ndarray) -> Codes:
    high = _bits(b[:, 66:74], 2).reshape(len(b), -1).astype(np.uint16)
    points = grid("IQ2_S")[b[:, 2:34] | high << np.uint16(8)]
    return Codes(_apply_signs(points, _stored_signs(b[:, 34:66])), _quarter(_half(b, 0), _nibbles(b[:, 74:])))


def _iq3_xxs(b: np.ndarray) -> Codes:
    words = _words(b[:, 66:], "<u4")
    return Codes(_apply_signs(grid("IQ3_XXS")[b[:, 2:66]], _packed_signs(words)), _quarter(_half(b, 0), words >> 28, 0.5))


def _iq3_s(b: np.ndarray) -> Codes:
    ninth = _bits(b[:, 66:74], 1).reshape(len(b), -1).astype(np.uint16)
    points = grid("IQ3_S")[b[:, 2:66] | ninth << np.uint16(8)]
    scales = (1 + 2 * _nibbles(b[:, 106:])).astype(np.float32)
    return Codes(_apply_signs(points, _stored_signs(b[:, 74:106])), _half(b, 0) * scales)


def _eighths(points: np.ndarray, minus: np.ndarray, d: np.ndarray) -> Codes:
    """(point +- 1/8) * d as integer codes with scale d / 8. points [blocks, parts, values], minus [blocks, parts]."""
    shift = np.int8(1) - np.int8(2) * minus.astype(np.int8)
    return Codes((points * np.int8(8) + shift[..., None]).reshape(len(points), -1), d / np.float32(8))


def _iq1_s(b: np.ndarray) -> Codes:
    h = _words(b[:, 34:], "<u2")
    high = (h[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(len(b), -1)
    points = grid("IQ1_S")[b[:, 2:34] | high << np.uint16(8)]
    return _eighths(points, (h >> 15).repeat(4, 1), _half(b, 0) * (2 * (h >> 12 & 7) + 1).astype(np.float32))


def _iq1_m(b: np.ndarray) -> Codes:
    words = _words(b[:, 48:], "<u2")
    parts = (words & np.uint16(0xF000)) >> np.array([12, 8, 4, 0], np.uint16)
    d = np.bitwise_or.reduce(parts, 1, keepdims=True).view("<f2").astype(np.float32)
    scales = (words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(len(b), -1)
    h = _nibbles(b[:, 32:48])
    points = grid("IQ1_S")[b[:, :32] | (h & 7).astype(np.uint16) << np.uint16(8)]
    return _eighths(points, h >> 3, d * (2 * scales + 1).astype(np.float32))


LAYOUTS: Mapping[str, Layout] = {
    "Q4_0": Layout(4, 32, _q4_0),
    "Q4_1": Layout(4, 32, _q4_1, mins=True),
    "Q5_0": Layout(5, 32, _q5_0),
    "Q5_1": Layout(5, 32, _q5_1, mins=True),
    "Q8_0": Layout(8, 32, _q8_0),
    "Q1_0": Layout(2, 128, _q1_0),
    "Q2_0": Layout(3, 64, _q2_0),
    "TQ1_0": Layout(2, 256, _tq1_0),
    "TQ2_0": Layout(3, 256, _tq2_0),
    "Q2_K": Layout(2, 16, _q2_k, mins=True),
    "Q3_K": Layout(3, 16, _q3_k),
    "Q4_K": Layout(4, 32, _q4_k, mins=True),
    "Q5_K": Layout(5, 32, _q5_k, mins=True),
    "Q6_K": Layout(6, 16, _q6_k),
    "IQ4_NL": Layout(8, 32, _iq4_nl),
    "IQ4_XS": Layout(8, 32, _iq4_xs),
    "MXFP4": Layout(5, 32, _mxfp4),
    "NVFP4": Layout(5, 16, _nvfp4),
    "IQ2_XXS": Layout(7, 32, _iq2_xxs),
    "IQ2_XS": Layout(7, 16, _iq2_xs),
    "IQ2_S": Layout(7, 16, _iq2_s),
    "IQ3_XXS": Layout(7, 32, _iq3_xxs),
    "IQ3_S": Layout(5, 32, _iq3_s),
    "IQ1_S": Layout(5, 32, _iq1_s),
    "IQ1_M": Layout(5, 16, _iq1_m),
}
"""Name of a block type -> layout."""
assert LAYOUTS.keys() == {t.name for t in TYPES.values() if not t.dense}
