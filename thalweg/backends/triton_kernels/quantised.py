"""Linear layers with quantised weights. Codes are read from memory and become numbers in registers, where they
multiply. Scales multiply the sums. Codes are exact in every type that multiplies them. So results are nearer to the
real numbers than those of a weight that was dequantised and rounded first.

NVFP4's scales belong to 16 inputs, too few for a sum of their own. They multiply the codes, exactly, as 4-bit floats
times float8_e4m3fn have 6 bits. The scale of the tensor multiplies the sums.

Other weights become numbers one by one too (`each`): those with groups of fewer than 128, with minima of groups, and with a
table of levels. They are made in float32 and rounded to the inputs' type, as the op's body does. So one iteration has several
groups, and its price is not paid for each of them.

`pack` lays codes out as the product reads them. 4-bit codes lie in pairs: byte i of a chunk of inputs holds its
element i and, in the upper half, element i + chunk / 2. Scales and zeros lie by group, so that a tile's are
neighbours.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from thalweg.backends.triton_kernels import codes
from thalweg.backends.triton_kernels.codes import without_negative_zero
from thalweg.backends.triton_kernels.linear import DTYPES
from thalweg.backends.triton_kernels.tiles import Tiles
from thalweg.hal.op import Kernel, Pack
from thalweg.hal.weights import QTensor, WeightFormat

CHUNK, WIDE = 64, 128
"""Inputs whose 4-bit codes are packed together: where sums have scales, and where weights have."""
SUMMED = 128
"""Inputs of the smallest group whose scale multiplies a sum. Smaller ones would be too many sums."""
LEAST = 32
"""Inputs of the smallest group of floats."""
SMALLEST = 16
"""Inputs of the smallest group of weights that become numbers one by one."""
ROW = 1 << 30
"""The group of such weights whose scales belong to whole rows."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@triton.constexpr_function
def each(kind: str, group: int, zeros: str) -> bool:
    """Are these weights made one by one, with scales and minima, before they multiply?"""
    return kind == "table4" or zeros == "mins" or (0 < group < 128 and kind != "raw" and kind != "raw8")


@triton.jit
def tile(
    weight, j, start, width, ok, kind, zero, KIND: tl.constexpr, HIGH: tl.constexpr, EVEN: tl.constexpr, K: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """The weight's tile of rows that begin at j [N], inputs start .. start + K - 1, as numbers of type `kind`, without
    scales. 4 bits: of the lower or the upper (HIGH) half of a chunk of 2 K. zero: what symmetric codes are above, or
    (table4) where the levels are."""
    i = tl.arange(0, K)
    if KIND == "int4" or KIND == "float4" or KIND == "nvfp4" or KIND == "table4":
        byte = tl.load(weight + j[:, None] + (start // 2 + i)[None, :], mask=ok[:, None], other=0).to(tl.int32)
        nibble = (byte >> 4) if HIGH else (byte & 15)
        if KIND == "table4":
            number = tl.load(zero + nibble).to(kind)
        else:
            value = codes.small_numbers(nibble, zero.to(tl.float32)[:, None]) if KIND == "int4" else codes.twice_e2m1(nibble)
            number = value.to(kind)
    else:
        if EVEN:
            mask = ok[:, None]
        else:
            mask = ok[:, None] & (start + i < width)[None, :]
        code = tl.load(weight + j[:, None] + (start + i)[None, :], mask=mask, other=0.0)
        if KIND == "float8":
            number = codes.from_e4m3(code, NATIVE).to(kind)
        elif KIND == "raw8":
            number = codes.as_native(code, NATIVE)
        elif KIND == "raw":
            number = code
        else:
            wide, above = code.to(tl.int32), zero.to(tl.float32)
            if weight.dtype.element_ty == tl.int8:
                wide, above = wide + 128, above + 128.0
            number = codes.small_numbers(wide, above[:, None]).to(kind)
    return number


@triton.jit
def _by_groups(number, scales, j, start, width, cols, ok, kind, N: tl.constexpr, K: tl.constexpr, NATIVE: tl.constexpr):
    """A tile [N, K] of NVFP4, inputs from `start` on, times the scales of its groups (half of those where `halved`)."""
    group = start // 16 + tl.arange(0, K // 16)
    there = ok[:, None] & (group * 16 < width)[None, :]
    scale = codes.from_e4m3(tl.load(scales + group[None, :] * cols + j[:, None], mask=there, other=0), NATIVE)
    each = tl.reshape(tl.broadcast_to(scale[:, :, None], [N, K // 16, 16]), [N, K])
    return (number.to(tl.float32) * each).to(kind)


@triton.jit
def _per_input(values, j, start, width, cols, ok, GROUP: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Of values [groups, cols] those of K inputs from `start` on: [N, K], or [N, 1] where one group has all of them."""
    if GROUP >= K:
        there = ok & (start < width)  # the second half of a last chunk may have no group
        found = tl.load(values + start // GROUP * cols + j, mask=there, other=0.0)[:, None]
    else:
        group = start // GROUP + tl.arange(0, K // GROUP)
        there = ok[:, None] & (group * GROUP < width)[None, :]
        few = tl.load(values + group[None, :] * cols + j[:, None], mask=there, other=0.0)
        found = tl.reshape(tl.broadcast_to(few[:, :, None], [N, K // GROUP, GROUP]), [N, K])
    return found


@triton.jit
def _weights(
    weight, cols_at, scales, zeros, j, start, at, width, cols, ok, zero, kind, KIND: tl.constexpr, GROUP: tl.constexpr,
    ZEROS: tl.constexpr, HIGH: tl.constexpr, EVEN: tl.constexpr, N: tl.constexpr, K: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """`tile` of inputs at .. at + K - 1, whose codes (4 bits) are of the chunk at `start`. With scales and minima where
    weights are made one by one, and with the scales of NVFP4's groups."""
    if KIND == "table4":
        zero = zeros
    made: tl.constexpr = tl.float32 if each(KIND, GROUP, ZEROS) else kind
    number = tile(weight, cols_at, start, width, ok, made, zero, KIND, HIGH, EVEN, K, NATIVE)
    if each(KIND, GROUP, ZEROS):
        number = number * _per_input(scales, j, at, width, cols, ok, GROUP, N, K)
        if ZEROS == "mins":
            number -= _per_input(zeros, j, at, width, cols, ok, GROUP, N, K)
        number = number.to(kind)
    if KIND == "nvfp4":
        number = _by_groups(number, zeros, j, at, width, cols, ok, kind, N, K, NATIVE)
    return number


@triton.jit
def _inputs(x, rows_at, start, width, ok, K: tl.constexpr, EVEN: tl.constexpr, kind, CODES: tl.constexpr, NATIVE: tl.constexpr):
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
def sums(
    x, rows_at, rows_ok, weight, scales, zeros, j, cols_at, cols_ok, width, cols, kind,
    KIND: tl.constexpr, GROUP: tl.constexpr, ZEROS: tl.constexpr, CODES: tl.constexpr, EVEN: tl.constexpr,
    INTEGER: tl.constexpr, NATIVE: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """float32 [M, N]: rows of x times rows of the weight, with the scales of the weight's groups (GROUP > 0) but not
    those of whole rows. rows_at [M], cols_at [N]: where they begin. j [N]: which columns they are, for scales and
    zeros. ZEROS: what `zeros` are, "zeros", "mins" or "" (none). nvfp4: `zeros` are the scales of its groups, `scales`
    those of rows. table4: `zeros` are its levels."""
    four: tl.constexpr = KIND == "int4" or KIND == "float4" or KIND == "nvfp4" or KIND == "table4"
    acc = tl.zeros([M, N], tl.int32 if INTEGER and GROUP <= 0 else tl.float32)
    zero = tl.full([N], 8 if KIND == "int4" and ZEROS != "mins" else 0, tl.int32)
    for start in range(0, width, K):
        if GROUP > 0:
            group = start // GROUP
        else:
            group = 0
        if ZEROS == "zeros":
            zero = tl.load(zeros + group * cols + j, mask=cols_ok, other=0).to(tl.int32)
        if four:
            half: tl.constexpr = K // 2
            a = _inputs(x, rows_at, start, width, rows_ok, half, EVEN, kind, False, False)
            b = _weights(
                weight, cols_at, scales, zeros, j, start, start, width, cols, cols_ok, zero, kind,
                KIND, GROUP, ZEROS, False, EVEN, N, half, NATIVE,
            )  # fmt: skip
            part = tl.dot(a, tl.trans(b), input_precision=PRECISION)
            a = _inputs(x, rows_at, start + half, width, rows_ok, half, EVEN, kind, False, False)
            b = _weights(
                weight, cols_at, scales, zeros, j, start, start + half, width, cols, cols_ok, zero, kind,
                KIND, GROUP, ZEROS, True, EVEN, N, half, NATIVE,
            )  # fmt: skip
            part = tl.dot(a, tl.trans(b), part, input_precision=PRECISION)
        else:
            a = _inputs(x, rows_at, start, width, rows_ok, K, EVEN, kind, CODES, NATIVE)
            b = _weights(
                weight, cols_at, scales, zeros, j, start, start, width, cols, cols_ok, zero, kind,
                KIND, GROUP, ZEROS, False, EVEN, N, K, NATIVE,
            )  # fmt: skip
            if INTEGER:
                part = tl.dot(a, tl.trans(b), out_dtype=tl.int32)
            else:
                part = tl.dot(a, tl.trans(b), input_precision=PRECISION)
        if GROUP > 0 and not each(KIND, GROUP, ZEROS):
            scale = tl.load(scales + group * cols + j, mask=cols_ok, other=0.0)
            acc += part.to(tl.float32) * scale[None, :]
        else:
            acc += part
    return acc.to(tl.float32)


@triton.jit
def scaled(acc, scales, j, ok, GROUP: tl.constexpr):
    """Sums [M, N] times the scales of whole rows of the weight (GROUP 0), j [N], or of all of it (below 0)."""
    if GROUP == 0:
        acc *= tl.load(scales + j, mask=ok, other=0.0)[None, :]
    if GROUP < 0:
        acc *= tl.load(scales)
    return acc


@triton.jit(do_not_specialize=["rows"])
def product(
    x, x_scales, weight, scales, zeros, bias, out, rows, width, cols, x_row, w_row,
    KIND: tl.constexpr, GROUP: tl.constexpr, ZEROS: tl.constexpr, CODES: tl.constexpr, EVEN: tl.constexpr,
    INTEGER: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, NATIVE: tl.constexpr, PRECISION: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """M x N of x [rows, width] (SCALED: codes, times x_scales [rows]) @ weight.T + bias."""
    i = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)
    j = (tl.program_id(1) * N + tl.arange(0, N)).to(tl.int64)
    i_ok, j_ok = i < rows, j < cols
    kind = out.dtype.element_ty
    acc = sums(
        x, i * x_row, i_ok, weight, scales, zeros, j, j * w_row, j_ok, width, cols, kind,
        KIND, GROUP, ZEROS, CODES, EVEN, INTEGER, NATIVE, PRECISION, M, N, K,
    )  # fmt: skip
    acc = scaled(acc, scales, j, j_ok, GROUP)
    if SCALED:
        acc *= tl.load(x_scales + i, mask=i_ok, other=0.0)[:, None]
    if BIAS:
        acc += tl.load(bias + j, mask=j_ok, other=0.0).to(tl.float32)[None, :]
    tl.store(out + i[:, None] * cols + j[None, :], acc.to(kind), mask=i_ok[:, None] & j_ok[None, :])


@triton.jit
def _code(x, scale, INTEGER: tl.constexpr, NATIVE: tl.constexpr):
    """Numbers in float32 as codes of this scale, as `hal.ops.quantise.quantise_rows` rounds them."""
    code = tl.div_rn(x, scale)
    if INTEGER:
        made = tl.minimum(tl.maximum(codes.nearest(code), -127.0), 127.0).to(tl.int8)
    else:
        made = codes.to_e4m3(code, NATIVE)
    return made


@triton.jit
def _round(x, out, scales, width, x_row, INTEGER: tl.constexpr, NATIVE: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    """One row of x to codes and the scale of what they are read as. WHOLE: a block holds the row, which is then read once."""
    r = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    if WHOLE:
        row = tl.load(x + r * x_row + i, mask=i < width, other=0.0).to(tl.float32)
        most = tl.max(tl.abs(row), 0)
    else:
        parts = tl.zeros([BLOCK], tl.float32)
        for start in range(0, width, BLOCK):
            parts = tl.maximum(
                parts, tl.abs(tl.load(x + r * x_row + start + i, mask=start + i < width, other=0.0).to(tl.float32))
            )
        most = tl.max(parts, 0)
    scale = tl.div_rn(most, 127.0 if INTEGER else 448.0)
    scale = tl.where(scale > 0, scale, 1.0)
    tl.store(scales + r, scale * 2.0 if not INTEGER and codes.halved(NATIVE) else scale)
    if WHOLE:
        tl.store(out + r * width + i, _code(row, scale, INTEGER, NATIVE), mask=i < width)
    else:
        for start in range(0, width, BLOCK):
            part = tl.load(x + r * x_row + start + i, mask=start + i < width, other=0.0).to(tl.float32)
            tl.store(out + r * width + start + i, _code(part, scale, INTEGER, NATIVE), mask=start + i < width)


def round_rows(tiles: Tiles, x: Tensor, act: str) -> tuple[Tensor, Tensor]:
    """x [rows, width] -> (codes [rows, width], int8 or the uint8 of float8_e4m3fn, scale float32 [rows])."""
    rows, width = x.shape
    out = torch.empty((rows, width), dtype=torch.int8 if act == "int8" else torch.uint8, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    block = min(triton.next_power_of_2(width), 2 * tiles.rows.warps * tiles.rows.per_warp)
    _round[(rows,)](
        x, out, scales, width, x.stride(0), INTEGER=act == "int8", NATIVE=tiles.float8, WHOLE=block >= width, BLOCK=block,
        num_warps=max(1, min(tiles.rows.warps, block // tiles.rows.per_warp)),
    )  # fmt: skip
    return out, scales


def linear(
    tiles: Tiles, kind: str, exact: bool, x: Tensor, weight: dict[str, Tensor], bias: Tensor | None = None, *, act: str = "",
    group: int = 0,
) -> Tensor:  # fmt: skip
    """exact: a row's terms are added in one order whatever the number of rows, as K is one number of the weight."""
    flat = x.reshape(-1, x.shape[-1])
    flat = flat if flat.stride(1) == 1 else flat.contiguous()
    (rows, width), packed = flat.shape, weight["codes"]
    cols = packed.shape[0]
    out = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if rows == 0:
        return out.view(*x.shape[:-1], cols)
    scales, x_scales = weight["scales"], weight["scales"]
    zeros, static = shifts(kind, group, weight)
    if act:
        flat, x_scales = round_rows(tiles, flat, act)
    made = tile_kind(tiles, kind, act)
    m, n, k = tile_sizes(tiles, made, static["GROUP"], cols, rows, exact, x.dtype)
    warps, stages = tiles.product.warps, tiles.product.stages
    if exact:
        t = tiles.product.choose(operands(tiles, act), rows, cols)
        t = t.cut(tiles.scalar) if x.dtype == torch.float32 else t
        m, n, warps, stages = t.rows, t.cols, t.warps, t.stages
        k = inputs_of(made, static["GROUP"], t.inner, x.dtype)
    if made == "raw8":  # loaded as they are, the matrix unit reads them where they arrive
        flat, packed = (t.view(getattr(torch, tiles.float8)) for t in (flat, packed))
    product[(triton.cdiv(rows, m), triton.cdiv(cols, n))](
        flat, x_scales, packed, scales, zeros, scales if bias is None else bias, out, rows, width, cols, flat.stride(0),
        packed.stride(0), KIND=made, **static,
        CODES=act == "float8_e4m3fn", EVEN=width % k == 0, INTEGER=act == "int8", SCALED=bool(act), BIAS=bias is not None,
        NATIVE=tiles.float8, PRECISION="ieee", M=m, N=n, K=k, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out.view(*x.shape[:-1], cols)


def shifts(kind: str, group: int, weight: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
    """What `sums` is given as `zeros` for a packed weight, and its GROUP and ZEROS."""
    name = next((n for n in ("zeros", "mins") if n in weight), "")
    held = weight[name] if name else weight.get("groups", weight.get("levels", weight["scales"]))
    if kind == "nvfp4":
        group = 0
    elif group == 0 and each(kind, group, name):
        group = ROW
    return held, {"GROUP": group, "ZEROS": name}


def tile_kind(tiles: Tiles, kind: str, act: str) -> str:
    """What `tile` makes of the codes: with integer inputs, or 8-bit floats the target multiplies, they stay as they are."""
    if act == "int8":
        return "raw"
    return "raw8" if act and tiles.float8 else kind


def tile_sizes(
    tiles: Tiles, kind: str, group: int, cols: int, rows: int, exact: bool, dtype: torch.dtype
) -> tuple[int, int, int]:
    """(M, N, K). K is a chunk of 4-bit codes, or at most a group."""
    t = tiles.product
    m, n = t.rows, t.cols if cols >= t.wide else t.narrow
    if not exact:
        m = min(m, max(16, triton.next_power_of_2(rows)))
    if dtype == torch.float32:
        m, n = min(m, tiles.scalar), min(n, tiles.scalar)
    return m, n, inputs_of(kind, group, t.inner, dtype)


def operands(tiles: Tiles, act: str) -> str:
    """Which tiles of a product serve inputs rounded to `act`."""
    if act == "int8":
        return "int8"
    return "float8" if act and tiles.float8 else "codes"


def inputs_of(kind: str, group: int, inner: int, dtype: torch.dtype) -> int:
    """Inputs of one iteration: a chunk of 4-bit codes, or at most a group. inner: the tile's; dtype: of the model."""
    if kind in ("int4", "float4", "nvfp4", "table4"):
        return chunk(group)
    k = max(LEAST, inner * 4 // dtype.itemsize)
    return min(k, group) if group >= SUMMED or (group > 0 and kind in ("raw", "raw8")) else k


def chunk(group: int, nvfp4: bool = False) -> int:
    """Inputs packed together, or read in one iteration: of one group, or of several."""
    return WIDE if 0 < group < SUMMED and not nvfp4 else CHUNK


def pack(tiles: Tiles, w: QTensor) -> dict[str, Tensor]:
    """{"codes": uint8 or int8 [out, in] or for 4 bits [out, in / 2 in whole chunks], "scales" and "zeros":
    [groups, out]}. Of NVFP4 "scales" are those of rows, and "groups" [groups, out] are codes of the others. Minima are
    "mins" [groups, out], and zero points of groups too small for sums of their own are held as such. A table's "levels"
    are [levels]."""
    codes, fnuz = w.data["codes"], tiles.float8 == "float8_e4m3fnuz"
    if w.format.scale_dtype:
        groups = w.data["scales"].t().contiguous().view(torch.uint8)
        made = {"scales": w.data["scale"].t() * (2 if fnuz else 1), "groups": without_negative_zero(groups) if fnuz else groups}
    else:
        made = {"scales": w.data["scales"].to(torch.float32).t().contiguous()}
    if "zeros" in w.data and not 0 < w.format.group < SUMMED:
        made["zeros"] = w.data["zeros"].t().contiguous()
    elif "zeros" in w.data:
        made["mins"] = made["scales"] * w.data["zeros"].t()
    if "mins" in w.data:
        made["mins"] = w.data["mins"].to(torch.float32).t().contiguous()
    if "levels" in w.data:
        made["levels"] = w.data["levels"].to(torch.float32).reshape(-1).contiguous()
    if w.format.kind == "float" and codes.dtype != torch.float8_e4m3fn:
        raise ValueError(f"weight {w.format} of shape {w.shape}: runs codes of float8_e4m3fn, not {codes.dtype}")
    if w.format.bits != 4:
        codes = codes.contiguous().view(torch.uint8 if w.format.kind == "float" else codes.dtype)
        if w.format.kind == "float" and fnuz:
            codes, made["scales"] = without_negative_zero(codes), made["scales"] * 2
        return made | {"codes": codes}
    if w.format.kind == "float":
        made["scales"] = made["scales"] * 0.5  # the product multiplies twice the values
        levels = torch.tensor(E2M1, device=codes.device)
        values = codes.to(torch.float32)
        nibbles = torch.bucketize(values.abs(), levels) + 8 * torch.signbit(values)
    else:
        nibbles = codes.to(torch.int16) + (8 if w.format.kind == "int" and w.format.symmetric else 0)
    return made | {"codes": _pairs(nibbles.to(torch.uint8), chunk(w.format.group, bool(w.format.scale_dtype)))}


def _pairs(nibbles: Tensor, chunk: int) -> Tensor:
    """[out, in] -> [out, in / 2], inputs filled up to whole chunks."""
    out, width = nibbles.shape
    full = torch.nn.functional.pad(nibbles, (0, -width % chunk)).view(out, -1, 2, chunk // 2)
    return (full[:, :, 0] | full[:, :, 1] << 4).reshape(out, -1).contiguous()


FORMATS: dict[str, tuple[str, str]] = {
    "triton-int8": ("int8", ""), "triton-int4": ("int4", ""), "triton-float8": ("float8", ""), "triton-float4": ("float4", ""),
    "triton-int8-int8": ("int8", "int8"), "triton-float8-float8": ("float8", "float8_e4m3fn"), "triton-nvfp4": ("nvfp4", ""),
    "triton-table4": ("table4", ""),
}  # fmt: skip
"""Kernel name -> (codes, type of the inputs)."""


def refusal(kind: str, act: str, w: WeightFormat, dtype: str) -> str | None:
    """None, or why codes of this kind with these inputs cannot run this format."""
    if kind == "nvfp4":
        found = (w.kind, w.bits, w.group, w.scale_dtype, w.act)
        if found != ("float", 4, 16, "float8_e4m3fn", ""):
            return f"runs nvfp4 weights, not {w}"
        return None if dtype in DTYPES else f"runs {', '.join(DTYPES)}, not {dtype}"
    bits = 4 if kind.endswith("4") else 8
    held = w.kind == kind.rstrip("48") and (w.bits == bits or (kind == "int8" and w.bits < 8 and w.bits != 4))
    if not held or w.act != act or w.scale_dtype:
        return f"runs {kind} weights{f' with {act} inputs' if act else ''}, not {w}"
    least = SMALLEST if w.kind in ("int", "table") and not act else LEAST
    if w.group > 0 and (w.group < least or w.group & (w.group - 1)):
        return f"runs groups that are a power of two and {least} or more, not {w.group}"
    if not w.symmetric and (act or w.group < 0):
        return "has zero points and minima only with groups or rows and the model's own inputs"
    if w.kind == "table" and w.group < 0:
        return "has tables of levels only with groups or rows"
    return None if dtype in DTYPES else f"runs {', '.join(DTYPES)}, not {dtype}"


def kernels(t: Tiles) -> tuple[Kernel, ...]:
    part, found, taken = functools.partial, [], Pack(functools.partial(pack, t))
    for name, (kind, act) in FORMATS.items():

        def fits(spec, kind=kind, act=act) -> str | None:
            return refusal(kind, act, spec["weight"], spec["dtype"])

        for exact in (False, True):
            run = part(linear, t, kind, exact)
            label = name if exact else f"{name}-variant"
            found.append(Kernel("linear", label, run, supports=fits, pack=taken, batch_invariant=exact))
    return tuple(found)
