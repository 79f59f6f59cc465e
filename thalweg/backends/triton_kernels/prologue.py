"""The work before attention, in one launch: norms of the heads of q and k where there are any, rotation, and keys and values
written into the cache. Rounds where `ops.rms_norm` and `ops.rope` round."""

import triton
import triton.language as tl

from thalweg.backends.triton_kernels.dependent import wait_for_launches
from thalweg.backends.triton_kernels.paged import _put


@triton.jit
def _apply_norm(x, weight, scale, offset, dtype: tl.constexpr, OFFSET: tl.constexpr):
    """Rows x times their scale and this weight, as float32 that `dtype` holds."""
    x = x * scale[:, None]
    if OFFSET:
        return (x * (weight + offset)).to(dtype).to(tl.float32)
    return (weight * x.to(dtype).to(tl.float32)).to(dtype).to(tl.float32)


@triton.jit
def _three(q, k, v, is_q, is_k, is_v, ok):
    """Elements of rows of q, of k and of v: by the row's own pointers."""
    x = tl.load(q, mask=ok & is_q[:, None], other=0.0).to(tl.float32)
    y = tl.load(k, mask=ok & is_k[:, None], other=0.0).to(tl.float32)
    z = tl.load(v, mask=ok & is_v[:, None], other=0.0).to(tl.float32)
    return tl.where(is_q[:, None], x, tl.where(is_k[:, None], y, z))


@triton.jit(do_not_specialize=["tokens", "table_row", "table_width"])
def turn_and_store(
    q, k, v, q_weight, k_weight, cos_sin, q_out, kv, scales, done, table, token_seq, positions, slots, tokens, q_token, q_head,
    k_token, k_head, v_token, v_head, angles, table_row, table_width, eps, offset,
    Q_HEADS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
    NORM: tl.constexpr, OFFSET: tl.constexpr, SIZE: tl.constexpr, HELD: tl.constexpr, NATIVE: tl.constexpr,
    CLEAR: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """ROWS (token, head) pairs: a token's heads of q, then of k, then of v. Those of q go to q_out [T, Q_HEADS, DIM], others
    into kv, as `paged.store` puts them. HALF: pairs that rotate. CLEAR: as of `paged.store`."""
    wait_for_launches(DEPENDENT)
    heads: tl.constexpr = Q_HEADS + 2 * HEADS
    dtype: tl.constexpr = q.dtype.element_ty
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    token, head = row // heads, row % heads
    there = token < tokens
    is_q, is_v = head < Q_HEADS, head >= Q_HEADS + HEADS
    is_k = (head >= Q_HEADS) & (head < Q_HEADS + HEADS)
    if CLEAR:
        tl.store(done + token * HEADS + head - Q_HEADS, 0, mask=there & is_k)
    own = tl.where(is_v, head - Q_HEADS - HEADS, head - Q_HEADS)
    d = tl.arange(0, BLOCK)
    if INTERLEAVED:
        first, other, angle = d % 2 == 0, d ^ 1, d // 2
    else:
        first, other, angle = d < HALF, tl.where(d < HALF, d + HALF, d - HALF), d % HALF
    turns = d < 2 * HALF
    other = tl.where(turns, other, d)
    ok = there[:, None] & (d < DIM)[None, :]
    of_q, of_k = q + (token * q_token + head * q_head)[:, None], k + (token * k_token + own * k_head)[:, None]
    of_v = v + (token * v_token + own * v_head)[:, None]
    x = _three(of_q + d[None, :], of_k + d[None, :], of_v + d[None, :], is_q, is_k, is_v, ok)
    apart = ok & turns[None, :]
    y = _three(of_q + other[None, :], of_k + other[None, :], of_v + other[None, :], is_q, is_k, is_v, apart)
    turned = x
    if NORM:
        scale = 1.0 / tl.sqrt_rn(tl.sum(x * x, 1) / DIM + eps)
        w_q, w_k = tl.load(q_weight + d, mask=d < DIM, other=0.0), tl.load(k_weight + d, mask=d < DIM, other=0.0)
        w = tl.where(is_q[:, None], w_q[None, :], w_k[None, :]).to(tl.float32)
        turned = _apply_norm(x, w, scale, offset, dtype, OFFSET)
        w_q, w_k = tl.load(q_weight + other, mask=turns, other=0.0), tl.load(k_weight + other, mask=turns, other=0.0)
        w = tl.where(is_q[:, None], w_q[None, :], w_k[None, :]).to(tl.float32)
        y = _apply_norm(y, w, scale, offset, dtype, OFFSET)
    position = tl.load(positions + token, mask=there, other=0)
    at = cos_sin + (position.to(tl.int64) * angles)[:, None] + angle[None, :]
    cos = tl.load(at, mask=apart, other=0.0).to(dtype).to(tl.float32)
    sin = tl.load(at + HALF, mask=apart, other=0.0).to(dtype).to(tl.float32)
    both = turned * cos + tl.where(first[None, :], -y, y) * sin
    out = tl.where(is_v[:, None], x, tl.where(turns[None, :], both, turned)).to(dtype)
    tl.store(q_out + ((token * Q_HEADS + head) * DIM)[:, None] + d[None, :], out, mask=ok & is_q[:, None])
    seq = tl.load(token_seq + token, mask=there, other=0).to(tl.int64)
    slot = tl.load(slots + seq, mask=there, other=0)
    column = tl.minimum(position // SIZE, table_width - 1)
    block = tl.load(table + seq * table_row + column, mask=there & (slot != 0), other=0).to(tl.int64)
    values: tl.constexpr = SIZE * HEADS * DIM
    stride: tl.constexpr = 2 * values // DIM * (DIM + 4) if HELD == "int8" else 2 * values
    half = tl.where(is_v, 1, 0)
    place = position % SIZE * HEADS + own + half * (SIZE * HEADS)
    put = (block * stride + place * DIM)[:, None] + d[None, :]
    _put(out, kv, scales, ok & (head >= Q_HEADS)[:, None], put, block * (stride // 4) + values // 2 + place, HELD, NATIVE)
