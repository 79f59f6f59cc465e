"""Linear layers with quantised weights. Codes are read from memory and become numbers in registers, where they
multiply. Scales multiply the sums. Codes are exact in every type that multiplies them. Results are thus nearer to the real
numbers than those of a weight dequantised and rounded first.

NVFP4's scales belong to 16 inputs, too few for a separate sum. They multiply the codes, exactly, as 4-bit floats
times float8_e4m3fn have 6 bits. The scale of the tensor multiplies the sums.

Other weights become numbers one by one too (`each`): those with groups of fewer than 128, with minimums of groups, and with a
table of levels. They are made in float32 and rounded to the inputs' type, as the op's body does. One iteration thus has several
groups, and its price is not paid for each.

`pack` lays codes out as the product reads them, 4-bit codes in words of four (`fours`). Scales and zeros lie by group, so that
a tile's are neighbours.

Sums of few rows may be cut into slices of a fixed length, each of which has a program. The last program of a tile to finish
adds them in their order, as one program does that makes them all. A row thus keeps its bits.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from thalweg.backends.triton_kernels import codes, fours
from thalweg.backends.triton_kernels.codes import to_e8m0, without_negative_zero
from thalweg.backends.triton_kernels.dependent import declare_dependence, prefetch_weight, wait_for_launches
from thalweg.backends.triton_kernels.fours import SUMMED, each
from thalweg.backends.triton_kernels.linear import DTYPES
from thalweg.backends.triton_kernels.rounding import gate_and_round, norm_and_round, refuse_joined, round_rows
from thalweg.backends.triton_kernels.tiles import FOURS, ProductTile, TileSizes
from thalweg.hal.op import Kernel, Pack
from thalweg.hal.weights import QTensor, WeightFormat

LEAST_COLS = 16
"""Outputs of the smallest tile."""
LEAST = 32
"""Inputs of the smallest group of floats."""
SMALLEST = 16
"""Inputs of the smallest group of weights that become numbers one by one."""
ROW = 1 << 30
"""The group of such weights with scales of whole rows."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@triton.jit
def tile(
    weight, j, start, width, ok, kind, zero, KIND: tl.constexpr, EVEN: tl.constexpr, K: tl.constexpr, NATIVE: tl.constexpr
):  # fmt: skip
    """The weight's tile of rows that begin at j [N], inputs start .. start + K - 1, as numbers of type `kind`, without
    scales. zero: the offset of symmetric codes."""
    i = start + tl.arange(0, K)
    if EVEN:
        mask = ok[:, None]
    else:
        mask = ok[:, None] & (i < width)[None, :]
    code = tl.load(weight + j[:, None] + i[None, :], mask=mask, other=0.0)
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
def sums(
    x, rows_at, rows_ok, weight, scales, zeros, j, cols_at, cols_ok, first, last, width, cols, kind,
    KIND: tl.constexpr, GROUP: tl.constexpr, ZEROS: tl.constexpr, CODES: tl.constexpr, EVEN: tl.constexpr,
    INTEGER: tl.constexpr, NATIVE: tl.constexpr, PAIRED: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """float32 [M, N]: rows of x times rows of the weight, inputs first .. last - 1, with the scales of the weight's groups
    (GROUP > 0) but not those of whole rows. rows_at [M], cols_at [N]: where they begin. j [N]: which columns they are, for
    scales and zeros. ZEROS: the kind of `zeros`, "zeros", "mins" or "" (none). nvfp4: `zeros` are the scales of its groups,
    `scales` those of rows. table4: `zeros` are its levels. STAGES: of the load pipeline. UNROLL: steps of K in one
    iteration."""
    if fours.is_four(KIND):
        total = fours.sums(
            x, rows_at, rows_ok, weight, scales, zeros, j, cols_at, cols_ok, first, last, width, cols, kind,
            KIND, GROUP, ZEROS, EVEN, NATIVE, PAIRED, PRECISION, M, N, K, STAGES, UNROLL,
        )  # fmt: skip
    else:
        alone: tl.constexpr = each(KIND, GROUP, ZEROS)
        acc = tl.zeros([M, N], tl.int32 if INTEGER and GROUP <= 0 else tl.float32)
        zero = tl.zeros([N], tl.int32)
        for start in range(first, last, K * UNROLL):
            for u in tl.static_range(UNROLL):
                at = start + u * K
                group = at // GROUP if GROUP > 0 else 0
                there = cols_ok if EVEN else cols_ok & (at < width)
                if ZEROS == "zeros":
                    zero = tl.load(zeros + group * cols + j, mask=there, other=0).to(tl.int32)
                a = fours.load_inputs(x, rows_at, at, width, rows_ok, K, EVEN, kind, CODES, NATIVE)
                b = tile(weight, cols_at, at, width, cols_ok, tl.float32 if alone else kind, zero, KIND, EVEN, K, NATIVE)
                b = fours.apply_scales(b, scales, zeros, j, at, width, cols, cols_ok, kind, KIND, GROUP, ZEROS, N, K, NATIVE)
                if INTEGER:
                    part = tl.dot(a, tl.trans(b), out_dtype=tl.int32)
                else:
                    part = tl.dot(a, tl.trans(b), input_precision=PRECISION)
                if GROUP > 0 and not alone:
                    scale = tl.load(scales + group * cols + j, mask=there, other=0.0)
                    acc += part.to(tl.float32) * scale[None, :]
                else:
                    acc += part
        total = acc.to(tl.float32)
    return total


@triton.jit
def scale_accumulator(acc, scales, j, ok, GROUP: tl.constexpr):
    """Sums [M, N] times the scales of whole rows of the weight (GROUP 0), j [N], or of the whole weight (below 0)."""
    if GROUP == 0:
        acc *= tl.load(scales + j, mask=ok, other=0.0)[None, :]
    if GROUP < 0:
        acc *= tl.load(scales)
    return acc


@triton.jit(do_not_specialize=["rows"])
def product(
    x, x_scales, weight, scales, zeros, bias, out, parts, done, rows, width, cols, x_row, w_row,
    KIND: tl.constexpr, GROUP: tl.constexpr, ZEROS: tl.constexpr, CODES: tl.constexpr, EVEN: tl.constexpr,
    INTEGER: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, NATIVE: tl.constexpr, PAIRED: tl.constexpr,
    PRECISION: tl.constexpr, SLICE: tl.constexpr, SHARED: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    STAGES: tl.constexpr, UNROLL: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """M x N of x [rows, width] (SCALED: codes, times x_scales [rows]) @ weight.T + bias. SLICE: inputs of a separate sum, 0 =
    all. SHARED: a slice for each program of the grid's third axis, through parts float32 [slices, tiles, N, M] and done int32
    [tiles], which counts the finished slices and is zero before and after. There is one tile of rows."""
    i = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)
    j = (tl.program_id(1) * N + tl.arange(0, N)).to(tl.int64)
    begin = tl.program_id(2) * (SLICE // 4) if SHARED else 0  # words of four codes
    prefetch_weight(weight, tl.minimum(j, cols - 1) * w_row, begin, w_row, DEPENDENT)
    wait_for_launches(DEPENDENT)
    i_ok, j_ok = i < rows, j < cols
    kind = out.dtype.element_ty
    if SHARED:
        tile_at = tl.program_id(1)
        first = tl.program_id(2) * SLICE
        acc = sums(
            x, i * x_row, i_ok, weight, scales, zeros, j, j * w_row, j_ok, first, tl.minimum(first + SLICE, width), width, cols,
            kind, KIND, GROUP, ZEROS, CODES, EVEN, INTEGER, NATIVE, PAIRED, PRECISION, M, N, K, STAGES, UNROLL,
        )  # fmt: skip
        at = parts + tl.arange(0, M)[:, None] + tl.arange(0, N)[None, :] * M
        step = tl.num_programs(1) * (M * N)
        tl.store(at + tl.program_id(2) * step + tile_at * (M * N), acc)
        tl.debug_barrier()  # all of the part is written before it is counted
        before = tl.atomic_add(done + tile_at, 1, sem="acq_rel")
        if before == tl.num_programs(2) - 1:
            acc = tl.zeros([M, N], tl.float32)
            for s in tl.range(0, tl.num_programs(2), loop_unroll_factor=4 if M <= 16 else 1):
                acc += tl.load(at + s * step + tile_at * (M * N))
            tl.store(done + tile_at, 0)
            _finish(acc, x_scales, scales, bias, out, i, j, i_ok, j_ok, cols, GROUP, SCALED, BIAS)
    else:
        if SLICE == 0:
            acc = sums(
                x, i * x_row, i_ok, weight, scales, zeros, j, j * w_row, j_ok, 0, width, width, cols, kind,
                KIND, GROUP, ZEROS, CODES, EVEN, INTEGER, NATIVE, PAIRED, PRECISION, M, N, K, STAGES, UNROLL,
            )  # fmt: skip
        else:
            acc = tl.zeros([M, N], tl.float32)
            for first in range(0, width, SLICE):
                last = tl.minimum(first + SLICE, width)
                acc += sums(
                    x, i * x_row, i_ok, weight, scales, zeros, j, j * w_row, j_ok, first, last, width, cols, kind,
                    KIND, GROUP, ZEROS, CODES, EVEN, INTEGER, NATIVE, PAIRED, PRECISION, M, N, K, STAGES, UNROLL,
                )  # fmt: skip
        _finish(acc, x_scales, scales, bias, out, i, j, i_ok, j_ok, cols, GROUP, SCALED, BIAS)


@triton.jit
def _finish(
    acc, x_scales, scales, bias, out, i, j, i_ok, j_ok, cols, GROUP: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr
):  # fmt: skip
    """Writes sums [M, N] with the scales of rows and a bias."""
    kind = out.dtype.element_ty
    acc = scale_accumulator(acc, scales, j, j_ok, GROUP)
    if SCALED:
        acc *= tl.load(x_scales + i, mask=i_ok, other=0.0)[:, None]
    if BIAS:
        acc += tl.load(bias + j, mask=j_ok, other=0.0).to(tl.float32)[None, :]
    tl.store(out + i[:, None] * cols + j[None, :], acc.to(kind), mask=i_ok[:, None] & j_ok[None, :])


def linear(
    tiles: TileSizes, kind: str, exact: bool, x: Tensor, weight: dict[str, Tensor], bias: Tensor | None = None, *,
    act: str = "",
    group: int = 0,
) -> Tensor:  # fmt: skip
    """exact: a row's terms are added in one order whatever the number of rows, as K is one number of the weight."""
    flat = x.reshape(-1, x.shape[-1])
    flat = flat if flat.stride(1) == 1 else flat.contiguous()
    codes, row_scales = round_rows(tiles, flat, act) if act else (flat, weight["scales"])
    out = multiply(tiles, kind, exact, codes, row_scales, weight, bias, x.dtype, act=act, group=group)
    return out.view(*x.shape[:-1], out.shape[1])


def multiply(
    tiles: TileSizes, kind: str, exact: bool, flat: Tensor, x_scales: Tensor, weight: dict[str, Tensor], bias: Tensor | None,
    dtype: torch.dtype, *, act: str, group: int,
) -> Tensor:  # fmt: skip
    """`linear` of rows [rows, width] as `act` holds them: codes of 8 bits with their scales float32 [rows], or numbers, whose
    x_scales are not read. The result has this dtype."""
    (rows, width), packed = flat.shape, weight["codes"]
    cols = packed.shape[0]
    out = torch.empty((rows, cols), dtype=dtype, device=flat.device)
    if rows == 0:
        return out
    scales = weight["scales"]
    zeros, static = shifts(kind, group, weight)
    result = tile_kind(tiles, kind, act)
    operand = operands(tiles, result, act, group)
    t = choose_tile(tiles, operand, cols, width, rows, exact, dtype, fours.is_chain(result, **static))
    length = tiles.product.slice_of(operand, cols, width)
    k = inputs_of(result, static["GROUP"], t.inner, dtype)
    unroll = steps_of(result, t, k)
    if result == "raw8":  # loaded as they are, the matrix unit reads them where they arrive
        flat, packed = (t.view(getattr(torch, tiles.float8)) for t in (flat, packed))
    down, across, parts, done = triton.cdiv(rows, t.rows), triton.cdiv(cols, t.cols), scales, scales
    slices = 1
    shared = bool(length) and t.shared and rows <= t.rows
    if shared:
        slices, done = triton.cdiv(width, length), weight["done"]
        parts = torch.empty(slices * across * t.rows * t.cols, dtype=torch.float32, device=flat.device)
    product[(down, across, slices)](
        flat, x_scales, packed, scales, zeros, scales if bias is None else bias, out, parts, done, rows, width, cols,
        flat.stride(0), packed.stride(0), KIND=result, **static,
        CODES=act == "float8_e4m3fn", EVEN=width % (k * unroll) == 0, INTEGER=act == "int8", SCALED=bool(act),
        BIAS=bias is not None, NATIVE=tiles.float8, PAIRED=tiles.paired, PRECISION="ieee", SLICE=length, SHARED=shared,
        M=t.rows, N=t.cols, K=k, STAGES=t.stages, UNROLL=unroll, num_warps=t.warps, num_stages=t.stages,
        **declare_dependence(tiles),
    )  # fmt: skip
    return out


def choose_tile(
    tiles: TileSizes, operand: str, cols: int, width: int, rows: int, exact: bool, dtype: torch.dtype, chain: bool
) -> ProductTile:  # fmt: skip
    """The tile of a product. operand: one of `tiles.OPERANDS`. chain: as of `fours.is_chain`."""
    if exact or operand in FOURS:
        rows = max(rows, fours.CHAINED) if chain else rows
        t = tiles.product.choose(operand, rows, cols, width)
        return t.cut(tiles.scalar) if dtype == torch.float32 else t
    m, n = tile_sizes(tiles, cols, rows, exact, dtype)
    p = tiles.product
    return ProductTile(m, n, p.inner, p.warps, p.stages)


def steps_of(result: str, t: ProductTile, k: int) -> int:
    """Steps of K in one iteration."""
    return max(1, t.inner // k) if fours.is_four(result) else t.unroll


def shifts(kind: str, group: int, weight: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
    """The argument `zeros` of `sums` for a packed weight, and its GROUP and ZEROS."""
    name = next((n for n in ("zeros", "mins") if n in weight), "")
    held = weight[name] if name else weight.get("groups", weight.get("levels", weight["scales"]))
    if kind == "nvfp4":
        group = 0
    elif group == 0 and each(kind, group, name):
        group = ROW
    return held, {"GROUP": group, "ZEROS": name}


def tile_kind(tiles: TileSizes, kind: str, act: str) -> str:
    """The operand type of `tile`: with integer inputs, or 8-bit floats the target multiplies, codes stay as they are."""
    if act == "int8":
        return "raw"
    return "raw8" if act and tiles.float8 else kind


def tile_sizes(tiles: TileSizes, cols: int, rows: int, exact: bool, dtype: torch.dtype) -> tuple[int, int]:
    """(M, N) of codes of 8 bits."""
    t = tiles.product
    m, n = t.rows, t.cols if cols >= t.wide else t.narrow
    if not exact:
        m = min(m, max(16, triton.next_power_of_2(rows)))
    if dtype == torch.float32:
        m, n = min(m, tiles.scalar), min(n, tiles.scalar)
    return m, n


def operands(tiles: TileSizes, result: str, act: str, group: int) -> str:
    """Which tiles of a product serve codes of `tile_kind` made, with inputs rounded to `act`."""
    if result == "scaled4":
        return "scaled"
    if fours.is_four(result):
        return "grouped" if result == "int4" and 0 < group <= fours.SHORT else "four"
    if act == "int8":
        return "int8"
    return "float8" if act and tiles.float8 else "codes"


def inputs_of(kind: str, group: int, inner: int, dtype: torch.dtype) -> int:
    """Inputs of one iteration: a chunk of 4-bit codes, or at most a group. inner: the tile's; dtype: of the model."""
    if fours.is_four(kind):
        return fours.chunk(16 if kind == "nvfp4" else group)
    k = max(LEAST, inner * 4 // dtype.itemsize)
    return min(k, group) if group >= SUMMED or (group > 0 and kind in ("raw", "raw8")) else k


def pack(tiles: TileSizes, w: QTensor) -> dict[str, Tensor]:
    """{"codes": uint8 or int8 [out, in] or for 4 bits int16 [out, in / 4 in whole chunks], "scales" and "zeros":
    [groups, out]}. Of NVFP4 "scales" are those of rows, and "groups" [groups, out] are codes of the others. Minimums are "mins"
    [groups, out], and zero points of groups too small for separate sums are held as such. A table's "levels" are [levels]."""
    codes, fnuz = w.data["codes"], tiles.float8 == "float8_e4m3fnuz"
    if w.format.scale_dtype:
        groups = w.data["scales"].t().contiguous().view(torch.uint8)
        result = {
            "scales": w.data["scale"].t() * (2 if fnuz else 1),
            "groups": without_negative_zero(groups) if fnuz else groups,
        }
    else:
        result = {"scales": w.data["scales"].to(torch.float32).t().contiguous()}
    if "zeros" in w.data and not 0 < w.format.group < (
        fours.LEAST if w.format.bits == 4 else SUMMED
    ):  # one load of a tile's copies 4 bytes or more
        result["zeros"] = w.data["zeros"].t().to(torch.int32).contiguous()
    elif "zeros" in w.data:
        result["mins"] = result["scales"] * w.data["zeros"].t()
    if "mins" in w.data:
        result["mins"] = w.data["mins"].to(torch.float32).t().contiguous()
    if "levels" in w.data:
        result["levels"] = w.data["levels"].to(torch.float32).reshape(-1).contiguous()
    if w.format.kind == "float" and codes.dtype != torch.float8_e4m3fn:
        raise ValueError(f"weight {w.format} of shape {w.shape}: runs codes of float8_e4m3fn, not {codes.dtype}")
    if w.format.bits != 4:
        codes = codes.contiguous().view(torch.uint8 if w.format.kind == "float" else codes.dtype)
        if w.format.kind == "float" and fnuz:
            codes, result["scales"] = without_negative_zero(codes), result["scales"] * 2
        return result | {"codes": codes}
    if w.format.kind == "float":
        levels = torch.tensor(E2M1, device=codes.device)
        powers = to_e8m0(result["scales"]) if w.format.group == fours.LEAST else None
        result["scales"] = result["scales"] if powers is None else powers
        values = codes.to(torch.float32)
        nibbles = torch.bucketize(values.abs(), levels) + 8 * torch.signbit(values)
    else:
        nibbles = codes.to(torch.int16) + (8 if w.format.kind == "int" and w.format.symmetric else 0)
    result["done"] = torch.zeros(-(-codes.shape[0] // LEAST_COLS), dtype=torch.int32, device=codes.device)
    return result | {"codes": _words(nibbles, fours.chunk(w.format.group))}


def _words(nibbles: Tensor, chunk: int) -> Tensor:
    """[out, in] -> int16 [out, in / 4], inputs filled up to whole chunks, as `fours` reads them."""
    out, width = nibbles.shape
    full = torch.nn.functional.pad(nibbles.to(torch.int32), (0, -width % chunk)).view(out, -1, 4, chunk // 4)
    word = full[:, :, 0] | full[:, :, 1] << 4 | full[:, :, 2] << 8 | full[:, :, 3] << 12
    return word.to(torch.int16).reshape(out, -1).contiguous()


SCALED = "triton-int4-scaled"
"""4-bit integers times their scales, rounded, in one sum (`scaled4` of `fours`): another order of sums than triton-int4's. It
serves only where a platform puts it first."""
FORMATS: dict[str, tuple[str, str]] = {
    "triton-int8": ("int8", ""), "triton-int4": ("int4", ""), "triton-float8": ("float8", ""), "triton-float4": ("float4", ""),
    "triton-int8-int8": ("int8", "int8"), "triton-float8-float8": ("float8", "float8_e4m3fn"), "triton-nvfp4": ("nvfp4", ""),
    "triton-table4": ("table4", ""), SCALED: ("scaled4", ""),
}  # fmt: skip
"""Kernel name -> (codes, type of the inputs)."""


def refusal(kind: str, act: str, w: WeightFormat, dtype: str) -> str | None:
    """None, or why codes of this kind with these inputs cannot run this format."""
    if kind == "nvfp4":
        found = (w.kind, w.bits, w.group, w.scale_dtype, w.act)
        if found != ("float", 4, 16, "float8_e4m3fn", ""):
            return f"runs nvfp4 weights, not {w}"
        return None if dtype in DTYPES else f"runs {', '.join(DTYPES)}, not {dtype}"
    if kind == "scaled4":
        if w.kind == "int" and w.bits == 4 and w.group not in range(fours.LEAST, fours.SHORT + 1):
            return f"runs groups that are {fours.LEAST} or {fours.SHORT}, not {w.group}"
        return "runs int4 weights with zero points, not minima" if w.mins else refusal("int4", act, w, dtype)
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


def rms_norm_linear(
    tiles: TileSizes, kind: str, exact: bool, x: Tensor, residual: Tensor | None, norm: Tensor, weight: dict[str, Tensor],
    bias: Tensor | None = None, *, eps: float, offset: float = 0.0, act: str, group: int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    codes, scales, total = norm_and_round(tiles, x, residual, norm, eps, offset, act)
    out = multiply(tiles, kind, exact, codes, scales, weight, bias, x.dtype, act=act, group=group)
    return out.view(*x.shape[:-1], out.shape[1]), total


def act_and_mul_linear(
    tiles: TileSizes, kind: str, exact: bool, x: Tensor, weight: dict[str, Tensor], bias: Tensor | None = None, *, gate: str,
    act: str, group: int = 0,
) -> Tensor:  # fmt: skip
    codes, scales = gate_and_round(tiles, x, gate, act)
    out = multiply(tiles, kind, exact, codes, scales, weight, bias, x.dtype, act=act, group=group)
    return out.view(*x.shape[:-1], out.shape[1])


def kernels(t: TileSizes) -> tuple[Kernel, ...]:
    part, found, taken = functools.partial, [], Pack(functools.partial(pack, t))
    for name, (kind, act) in FORMATS.items():

        def fits(spec, kind=kind, act=act) -> str | None:
            return refusal(kind, act, spec["weight"], spec["dtype"])

        for exact in (True,) if name == SCALED else (False, True):
            label = name if exact else f"{name}-variant"
            for f in (linear, *((rms_norm_linear, act_and_mul_linear) if act else ())):
                supports = refuse_joined(f.__name__, fits)
                found.append(Kernel(f.__name__, label, part(f, t, kind, exact), supports, pack=taken, batch_invariant=exact))
    return tuple(found)
