"""Row-wise ops between the matrix products: norms, rotary embedding, gated activations. A program owns whole rows, so
a row's result does not depend on how many there are. Arithmetic is float32. Results round where the reference bodies
round."""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from thalweg.backends.triton_kernels.dependent import declare_dependence, wait_for_launches
from thalweg.backends.triton_kernels.tiles import TileSizes
from thalweg.hal.op import Kernel
from thalweg.hal.ops.activation import ACTIVATIONS, CLAMP, CUT, OAI_ALPHA, OAI_LIMIT, SITU, SWIGLU_OAI, is_gate

WIDEST = 65536
"""Elements of the longest row a program holds in registers."""
GATES = (*ACTIVATIONS, f"{CLAMP}*", f"{CUT}*", f"{SITU}*")
"""Names of gates with a kernel."""
_ALPHA = tl.constexpr(OAI_ALPHA)


@triton.jit
def normalize(wide, weight, c, width, eps, offset, kind, OFFSET: tl.constexpr):
    """rms_norm of rows in float32, elements c of `width` each, times the weight: of type `kind`, where the op rounds."""
    scale = 1.0 / tl.sqrt_rn(tl.sum(wide * wide, 1) / width + eps)
    normed = wide * scale[:, None]
    w = tl.load(weight + c, mask=c < width, other=0.0).to(tl.float32)
    if OFFSET:
        w += offset
    else:
        normed = normed.to(kind).to(tl.float32)
    return (normed * w[None, :]).to(kind)


@triton.jit(do_not_specialize=["rows"])
def _norm(
    x, residual, weight, out, total, rows, inner, x_outer, x_inner, r_outer, r_inner, width, eps, offset,
    ADD: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """ROWS rows of rms_norm, or of add_rms_norm. Row r of x starts at r // inner * x_outer + r % inner * x_inner."""
    wait_for_launches(DEPENDENT)
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = (r < rows)[:, None] & (c < width)[None, :]
    at = (r // inner * x_outer + r % inner * x_inner)[:, None] + c[None, :]
    wide = tl.load(x + at, mask=ok, other=0.0).to(tl.float32)
    put = r[:, None] * width + c[None, :]
    if ADD:
        at = (r // inner * r_outer + r % inner * r_inner)[:, None] + c[None, :]
        wide += tl.load(residual + at, mask=ok, other=0.0).to(tl.float32)
        wide = wide.to(total.dtype.element_ty)
        tl.store(total + put, wide, mask=ok)
        wide = wide.to(tl.float32)
    tl.store(out + put, normalize(wide, weight, c, width, eps, offset, out.dtype.element_ty, OFFSET), mask=ok)


@triton.jit(do_not_specialize=["tokens"])
def _rope(
    q, k, positions, cos_sin, q_out, k_out, tokens, q_token, q_head, k_token, k_head, angles,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """ROWS (token, head) pairs, the heads of q before those of k. HALF: pairs that rotate. REST: elements that do
    not."""
    wait_for_launches(DEPENDENT)
    heads: tl.constexpr = Q_HEADS + K_HEADS
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    token, head = row // heads, row % heads
    ok, is_q = token < tokens, head < Q_HEADS
    i = tl.arange(0, BLOCK)
    both = ok[:, None] & (i < HALF)[None, :]
    place = tl.load(positions + token, mask=ok, other=0).to(tl.int64) * angles
    dtype = q.dtype.element_ty
    cos = tl.load(cos_sin + place[:, None] + i[None, :], mask=both, other=0.0).to(dtype).to(tl.float32)
    sin = tl.load(cos_sin + place[:, None] + HALF + i[None, :], mask=both, other=0.0).to(dtype).to(tl.float32)
    if INTERLEAVED:
        first, second = 2 * i, 2 * i + 1
    else:
        first, second = i, i + HALF
    from_q, from_k = (token * q_token + head * q_head)[:, None], (token * k_token + (head - Q_HEADS) * k_head)[:, None]
    to_q, to_k = ((token * Q_HEADS + head) * DIM)[:, None], ((token * K_HEADS + head - Q_HEADS) * DIM)[:, None]
    of_q, of_k = both & is_q[:, None], both & (head >= Q_HEADS)[:, None]
    a = tl.load(q + from_q + first[None, :], mask=of_q, other=0.0).to(tl.float32)
    b = tl.load(q + from_q + second[None, :], mask=of_q, other=0.0).to(tl.float32)
    a += tl.load(k + from_k + first[None, :], mask=of_k, other=0.0).to(tl.float32)
    b += tl.load(k + from_k + second[None, :], mask=of_k, other=0.0).to(tl.float32)
    low, high = (a * cos - b * sin).to(dtype), (b * cos + a * sin).to(dtype)
    tl.store(q_out + to_q + first[None, :], low, mask=of_q)
    tl.store(q_out + to_q + second[None, :], high, mask=of_q)
    tl.store(k_out + to_k + first[None, :], low, mask=of_k)
    tl.store(k_out + to_k + second[None, :], high, mask=of_k)
    if REST > 0:
        j = tl.arange(0, REST)
        still = ok[:, None] & (j < DIM - 2 * HALF)[None, :]
        c = 2 * HALF + j[None, :]
        of_q, of_k = still & is_q[:, None], still & (head >= Q_HEADS)[:, None]
        tl.store(q_out + to_q + c, tl.load(q + from_q + c, mask=of_q), mask=of_q)
        tl.store(k_out + to_k + c, tl.load(k + from_k + c, mask=of_k), mask=of_k)


@triton.jit
def activate(gate, ACT: tl.constexpr):
    if ACT == "silu":
        gate = gate / (1.0 + tl.exp(-gate))
    elif ACT == "gelu":
        gate = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        y = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # tanh(y / 2) = 2 / (1 + exp(-y)) - 1
        gate = gate / (1.0 + tl.exp(-y))
    return gate


@triton.jit
def _clamp(x, low, high):
    """x within low .. high. NaN stays NaN, which `tl.minimum` would make a number."""
    return tl.where(x > high, high, tl.where(x < low, low, x))


@triton.jit
def _tanh(x):
    """tanh. Near 0 by Taylor's sum to degree 9, because the difference of exponentials cancels there. NaN stays NaN."""
    t, s = tl.exp(-2.0 * tl.abs(x)), x * x
    far = (1.0 - t) / (1.0 + t)
    near = x * (1.0 + s * (-0.33333333 + s * (0.13333333 + s * (-0.053968254 + s * 0.021869489))))
    return tl.where(tl.abs(x) < 0.3, near, tl.where(x < 0, -far, far))


@triton.jit
def apply_gate(gate, high, kind, ACT: tl.constexpr, LIMIT: tl.constexpr, UP_LIMIT: tl.constexpr):
    """act(gate) * high in float32, rounded to `kind` wherever `hal.ops.activation.glu` rounds. LIMIT: of the activations
    with bounds. UP_LIMIT: of SiTU, the bound of high, or 0."""
    gate = gate.to(kind).to(tl.float32)
    high = high.to(kind).to(tl.float32)
    if ACT == "situ":
        if UP_LIMIT > 0:
            high = UP_LIMIT * _tanh(high / UP_LIMIT)
        gate = LIMIT * _tanh(gate / LIMIT) / (1.0 + tl.exp(-gate))
    elif ACT == "swiglu_oai":
        gate = _clamp(gate, float("-inf"), LIMIT)
        high = (_clamp(high, -LIMIT, LIMIT) + 1.0).to(kind).to(tl.float32)
        share = 1.0 / (1.0 + tl.exp(-(gate * _ALPHA).to(kind).to(tl.float32)))
        gate = (gate * share.to(kind).to(tl.float32)).to(kind).to(tl.float32)
    else:
        if ACT == "silu_clamp":
            gate = _clamp(gate, float("-inf"), LIMIT).to(kind).to(tl.float32)
        if ACT == "silu_clamp" or ACT == "silu_cut":
            gate = activate(gate, "silu").to(kind).to(tl.float32)
            high = _clamp(high, -LIMIT, LIMIT).to(kind).to(tl.float32)
        else:
            gate = activate(gate, ACT).to(kind).to(tl.float32)
        if ACT == "silu_cut":
            gate = _clamp(gate, float("-inf"), LIMIT).to(kind).to(tl.float32)
    return (gate * high).to(kind)


def split_activation(act: str) -> dict[str, str | float]:
    """An activation as `apply_gate` knows it: its name, where it clamps, and where it clamps the second half, if elsewhere."""
    for bounded in (CLAMP, CUT, SITU):
        if act.startswith(bounded):
            limit, *more = map(float, act.removeprefix(bounded).split("_"))
            return {"ACT": bounded.rstrip("_"), "LIMIT": limit, "UP_LIMIT": more[0] if more else 0.0}
    return {"ACT": act, "LIMIT": OAI_LIMIT if act == SWIGLU_OAI else 0.0, "UP_LIMIT": 0.0}


@triton.jit(do_not_specialize=["rows"])
def _gate(
    x, out, rows, stride, width, ACT: tl.constexpr, LIMIT: tl.constexpr, UP_LIMIT: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """ROWS x BLOCK elements of act(first half) * second half."""
    wait_for_launches(DEPENDENT)
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = (r < rows)[:, None] & (c < width)[None, :]
    at = r[:, None] * stride + c[None, :]
    gate = tl.load(x + at, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(x + at + width, mask=ok, other=0.0).to(tl.float32)
    result = apply_gate(gate, up, out.dtype.element_ty, ACT, LIMIT, UP_LIMIT)
    tl.store(out + r[:, None] * width + c[None, :], result, mask=ok)


def _places(x: Tensor) -> tuple[Tensor, int, int, int]:
    """(x, inner, outer stride, inner stride): where the rows of x [..., H] start. A copy if two strides do not say
    it."""
    if x.stride(-1) != 1 or x.dim() > 3:
        x = x.contiguous()
    if x.dim() == 3:
        return x, x.shape[1], x.stride(0), x.stride(1)
    if x.dim() > 3:
        return x, 1, x.shape[-1], 0
    return x, 1, x.stride(0) if x.dim() == 2 else x.shape[-1], 0


def _run_norm(
    t: TileSizes, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, offset: float
) -> tuple[Tensor, Tensor]:
    width = x.shape[-1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(out) if residual is not None else out
    rows = x.numel() // width
    if rows == 0:
        return out, total
    x, inner, outer_stride, inner_stride = _places(x)
    r_outer, r_inner = outer_stride, inner_stride
    if residual is not None:
        residual, r_in, r_outer, r_inner = _places(residual)
        if r_in != inner:
            raise ValueError(f"add_rms_norm: x {tuple(x.shape)} and residual {tuple(residual.shape)} differ")
    per, block, warps = t.rows.split(width)
    _norm[(triton.cdiv(rows, per),)](
        x, x if residual is None else residual, weight, out, total, rows, inner, outer_stride, inner_stride, r_outer, r_inner,
        width, eps, offset, ADD=residual is not None, OFFSET=offset != 0.0, ROWS=per, BLOCK=block, num_warps=warps,
        **declare_dependence(t),
    )  # fmt: skip
    return out, total


def rms_norm(t: TileSizes, x: Tensor, weight: Tensor | None = None, *, eps: float, offset: float = 0.0) -> Tensor:
    return _run_norm(t, x, None, x.new_ones(x.shape[-1]) if weight is None else weight, eps, offset)[0]


def add_rms_norm(
    t: TileSizes, x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    return _run_norm(t, x, residual, weight, eps, offset)


def rope(
    t: TileSizes, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, *, rotary_dim: int, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    tokens, q_heads, dim = q.shape
    k_heads, half = k.shape[1], rotary_dim // 2
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    out = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k)]
    rows = tokens * (q_heads + k_heads)
    if rows == 0:
        return out[0], out[1]
    per, block, warps = t.rows.split(half)
    rest = dim - rotary_dim
    _rope[(triton.cdiv(rows, per),)](
        q, k, positions, cos_sin, *out, tokens, q.stride(0), q.stride(1), k.stride(0), k.stride(1), cos_sin.stride(0),
        Q_HEADS=q_heads, K_HEADS=k_heads, DIM=dim, HALF=half, INTERLEAVED=interleaved, ROWS=per, BLOCK=block,
        REST=triton.next_power_of_2(rest) if rest else 0, num_warps=warps, **declare_dependence(t),
    )  # fmt: skip
    return out[0], out[1]


def act_and_mul(t: TileSizes, x: Tensor, *, act: str = "silu") -> Tensor:
    width = x.shape[-1] // 2
    flat = x.reshape(-1, 2 * width)
    out = torch.empty((*x.shape[:-1], width), dtype=x.dtype, device=x.device)
    rows = flat.shape[0]
    if rows == 0:
        return out
    per, block, warps = t.rows.split(min(width, t.rows.elements))
    grid = (triton.cdiv(rows, per), triton.cdiv(width, block))
    _gate[grid](
        flat, out, rows, flat.stride(0), width, **split_activation(act), ROWS=per, BLOCK=block, num_warps=warps,
        **declare_dependence(t),
    )  # fmt: skip
    return out


def _float_dtype(spec) -> str | None:
    dtype = spec.get("dtype", "float32")
    return None if dtype in ("float32", "bfloat16", "float16") else f"runs float32, bfloat16 and float16, not {dtype}"


def fits_gate(spec) -> str | None:
    act = spec.get("act", "silu")
    return _float_dtype(spec) if is_gate(act) else f"runs {', '.join(GATES)}, not {act}"


def _norm_fits(spec) -> str | None:
    width = spec.get("size", spec.get("hidden", 0))
    return _float_dtype(spec) or (f"rows of {width} are longer than {WIDEST}" if width > WIDEST else None)


def kernels(t: TileSizes) -> tuple[Kernel, ...]:
    """The kernels of this module with the tile sizes `t`."""
    part = functools.partial
    return (
        Kernel("rms_norm", "triton", part(rms_norm, t), supports=_norm_fits, batch_invariant=True),
        Kernel("add_rms_norm", "triton", part(add_rms_norm, t), supports=_norm_fits, batch_invariant=True),
        Kernel("rope", "triton", part(rope, t), supports=_float_dtype, batch_invariant=True),
        Kernel("act_and_mul", "triton", part(act_and_mul, t), supports=fits_gate, batch_invariant=True),
    )
