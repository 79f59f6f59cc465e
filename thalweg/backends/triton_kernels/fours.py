"""Sums of products with 4-bit weights, and code shared with other quantised weights.

A chunk of 256 inputs of one output lies in 64 words of 16 bits. Bits 4 q .. 4 q + 3 of word i are the code of input 64 q + i.
One mask and one shift thus make a tile of 64 neighbouring inputs out of a tile of words, without a shuffle. On targets with
`TileSizes.paired` one instruction does so for two words. Where groups have 64 inputs or fewer, chunks have half the size. On an
NVIDIA H200 that was up to 1.7 times as fast for 64 rows and more, since two programs share a multiprocessor.

The weight is the first operand of the matrix unit. That operand may lie in registers, where the codes become numbers. The
second one, the inputs, is read from shared memory as it arrived. A tile has no row of inputs more than it needs.

Integers with groups have two forms. `int4` multiplies the codes, and a group's sum by its scale, in a second accumulator.
`scaled4` multiplies the scale first and rounds, as the op's body does, so that one accumulator holds a sum. Large tiles then
fit the registers. Tiles of 64 x 64 read each input from the L2 cache once for every 64 outputs, which limits prompts.

The order of a sum does not depend on a tile: groups (or quarters of chunks, or none) from the first to the last.
"""

import triton
import triton.language as tl

from thalweg.backends.triton_kernels import codes

LEAST = 32
"""Inputs of the smallest group with a scale that multiplies a sum of 4-bit codes."""
SUMMED = 128
"""Inputs of the smallest group of 8-bit codes with a scale that multiplies a sum. Smaller ones would be too many sums."""


@triton.constexpr_function
def is_four(kind: str) -> bool:
    """Do these codes have 4 bits?"""
    return kind in ("int4", "scaled4", "float4", "nvfp4", "table4")


SHORT = 64
"""Inputs of the largest group that has chunks of half the size."""
CHAINED = 16
"""Rows of the smallest tile that makes a sum in one chain. On an NVIDIA H200 such sums had other bits in tiles of 8 rows, which
use another matrix instruction (NVFP4, `ci/gpu/rows.py`). Sums of groups had the same."""


def is_chain(kind: str, GROUP: int, ZEROS: str) -> bool:
    """Is a sum of 4-bit codes made only by the matrix unit, across groups?"""
    return is_four(kind) and (GROUP <= 0 or kind == "scaled4" or each(kind, GROUP, ZEROS))


def chunk(group: int) -> int:
    """Inputs of a chunk of 4-bit codes with groups of so many. A tile is of one group, or has whole ones."""
    return 128 if 0 < group <= SHORT else 256


@triton.constexpr_function
def each(kind: str, group: int, zeros: str) -> bool:
    """Are these weights made one by one, with scales and minimums, before they multiply?"""
    least = 0 if kind in ("raw", "raw8") else LEAST if kind in ("int4", "scaled4", "float4") else SUMMED
    return kind == "table4" or zeros == "mins" or 0 < group < least


@triton.jit
def load_inputs(
    x, rows_at, start, width, ok, K: tl.constexpr, EVEN: tl.constexpr, kind, CODES: tl.constexpr, NATIVE: tl.constexpr
):  # fmt: skip
    """x's tile [M, K]. CODES: 8-bit floats, as they are where the target multiplies them, otherwise as numbers of
    type kind."""
    i = start + tl.arange(0, K)
    if EVEN:
        mask = ok[:, None]
    else:
        mask = ok[:, None] & (i < width)[None, :]
    a = tl.load(x + rows_at[:, None] + i[None, :], mask=mask, other=0.0)
    if CODES:
        a = codes.as_native(a, NATIVE) if NATIVE != "" else codes.from_e4m3(a, "").to(kind)
    return a


@triton.jit
def apply_scales(
    number, scales, zeros, j, start, width, cols, ok, kind, KIND: tl.constexpr, GROUP: tl.constexpr, ZEROS: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """A tile [N, K], inputs from `start` on, of weights made one by one, or of NVFP4 (halved where `is_fnuz`)."""
    if each(KIND, GROUP, ZEROS):
        number = number * _per_input(scales, j, start, width, cols, ok, GROUP, N, K)
        if ZEROS == "mins":
            number -= _per_input(zeros, j, start, width, cols, ok, GROUP, N, K)
        number = number.to(kind)
    if KIND == "nvfp4":
        group = start // 16 + tl.arange(0, K // 16)
        there = ok[:, None] & (group * 16 < width)[None, :]
        scale = codes.from_e4m3(tl.load(zeros + group[None, :] * cols + j[:, None], mask=there, other=0), NATIVE)
        wide = tl.reshape(tl.broadcast_to(scale[:, :, None], [N, K // 16, 16]), [N, K])
        number = (number.to(tl.float32) * wide).to(kind)
    return number


@triton.jit
def _per_input(values, j, start, width, cols, ok, GROUP: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Values [groups, cols] for K inputs from `start` on: [N, K], or [N, 1] where one group has all inputs."""
    if GROUP >= K:
        there = ok & (start < width)  # the last quarters of a chunk may have no group
        found = tl.load(values + start // GROUP * cols + j, mask=there, other=0.0)[:, None]
    else:
        group = start // GROUP + tl.arange(0, K // GROUP)
        there = ok[:, None] & (group * GROUP < width)[None, :]
        few = tl.load(values + group[None, :] * cols + j[:, None], mask=there, other=0.0)
        found = tl.reshape(tl.broadcast_to(few[:, :, None], [N, K // GROUP, GROUP]), [N, K])
    return found


@triton.jit
def sums(
    x, rows_at, rows_ok, weight, scales, zeros, j, cols_at, cols_ok, first, last, width, cols, kind,
    KIND: tl.constexpr, GROUP: tl.constexpr, ZEROS: tl.constexpr, EVEN: tl.constexpr, NATIVE: tl.constexpr,
    PAIRED: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """float32 [M, N]: `quantised.sums` of 4-bit codes, of inputs first .. last - 1, where first is a chunk's. K: inputs of a
    chunk. scales: of groups of 32 they may be int32 [chunks, cols], four exponents each."""
    quarter: tl.constexpr = K // 4
    alone: tl.constexpr = each(KIND, GROUP, ZEROS)
    scaled: tl.constexpr = KIND == "scaled4"
    apart: tl.constexpr = GROUP > 0 and not alone and not scaled
    powers: tl.constexpr = apart and scales.dtype.element_ty == tl.int32
    result: tl.constexpr = tl.float32 if alone else kind
    acc = tl.zeros([N, M], tl.float32)
    part = tl.zeros([N, M], tl.float32)
    zero = tl.full([N], 8 if (KIND == "int4" or scaled) and ZEROS != "mins" else 0, tl.int32)
    factor = tl.zeros([N], tl.float32)
    i = tl.arange(0, quarter)
    for begin in tl.range(first, last, K * UNROLL, num_stages=STAGES):
        for u in tl.static_range(UNROLL):
            start = begin + u * K
            there = cols_ok if EVEN else cols_ok & (start < width)
            word = tl.load(weight + cols_at[:, None] + (start // 4 + i)[None, :], mask=there[:, None], other=0)
            if powers:
                exponents = tl.load(scales + start // K * cols + j, mask=there, other=0)
            for q in tl.static_range(4):
                at = start + q * quarter
                if EVEN:
                    there = cols_ok
                else:
                    there = cols_ok & (at // GROUP * GROUP < width if GROUP > 0 else at < width)
                if ZEROS == "zeros" and (q == 0 or (GROUP > 0 and q * quarter % GROUP == 0)):
                    zero = tl.load(zeros + (at // GROUP if GROUP > 0 else 0) * cols + j, mask=there, other=0).to(tl.int32)
                if scaled and (q == 0 or q * quarter % GROUP == 0):
                    factor = tl.load(scales + at // GROUP * cols + j, mask=there, other=0.0)
                a = load_inputs(x, rows_at, at, width, rows_ok, quarter, EVEN, kind, False, "")
                if scaled:
                    b = codes.of_scaled(word, zero, factor, result, q, PAIRED, N, quarter)
                elif KIND == "table4":
                    b = tl.load(zeros + ((word >> (4 * q)) & 15))
                else:
                    b = codes.of_four(word, zero, result, q, KIND, PAIRED, N, quarter)
                b = apply_scales(b, scales, zeros, j, at, width, cols, cols_ok, kind, KIND, GROUP, ZEROS, N, quarter, NATIVE)
                if apart:
                    if q * quarter % GROUP == 0:
                        part = tl.dot(b, tl.trans(a), input_precision=PRECISION)
                    else:
                        part = tl.dot(b, tl.trans(a), part, input_precision=PRECISION)
                    if (q + 1) * quarter % GROUP == 0 or q == 3:
                        if powers:
                            scale = codes.from_e8m0(exponents, q)
                        else:
                            scale = tl.load(scales + at // GROUP * cols + j, mask=there, other=0.0)
                        acc += part * scale[:, None]
                else:
                    acc = tl.dot(b, tl.trans(a), acc, input_precision=PRECISION)
    return tl.trans(acc)
