"""Low-rank adapters: rows cut into tiles of one slot each, by counts that lie on the device.

There are as many programs as there could be tiles, and some find nothing to do. A captured step thus replays for any slots. Few
rows need one launch, in which every program computes A x of its tile again. Many rows need two. A sum has one order in both.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from thalweg.backends.triton_kernels.groups import MOST_RANKED
from thalweg.backends.triton_kernels.linear import DTYPES
from thalweg.backends.triton_kernels.tiles import TileSizes
from thalweg.hal.op import Kernel

FEW = 64
"""Rows up to which A x is computed again by every program, which saves a launch."""
PARTS = 4
"""Parts of a layer's outputs in one launch."""
MOST_HELD = 4096
"""Values of A that a program holds at once. More do not fit the registers of some devices."""
MOST_RANKS = 64
"""Ranks that a program multiplies by B at once, for the same reason. Adapters of more take two launches."""
_ROWS, _BLOCK, _CHUNK = 16, 32, 128
BOTH, SHRINK, EXPAND = 0, 1, 2


@triton.jit(do_not_specialize=["count", "blocks"])
def _find_rows(
    slot, seq, read, slots, order, starts, count, blocks, READ: tl.constexpr, RANK: tl.constexpr, BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """The first `blocks` programs put BLOCK rows where they belong: after those of lower slots, and those of the same that come
    before. Each of the others finds where one slot starts."""
    n = tl.program_id(0)
    p = n * BLOCK + tl.arange(0, BLOCK)
    mine = _slots_of(slot, seq, read, p, (p < count) & (n < blocks), READ)
    before = tl.zeros([BLOCK], tl.int32)
    lower = tl.zeros([CHUNK], tl.int32)
    for start in range(0, count, CHUNK):
        q = start + tl.arange(0, CHUNK)
        other = _slots_of(slot, seq, read, q, q < count, READ)
        if n < blocks:
            if RANK:
                first = (other[None, :] < mine[:, None]) | ((other[None, :] == mine[:, None]) & (q[None, :] < p[:, None]))
                before += tl.sum((first & (q < count)[None, :]).to(tl.int32), 1)
        else:
            lower += ((other < n - blocks) & (q < count)).to(tl.int32)
    if n < blocks:
        tl.store(slots + p, mine, mask=p < count)
        if RANK:
            tl.store(order + before, p, mask=p < count)
    else:
        tl.store(starts + n - blocks, tl.sum(lower, 0))


@triton.jit
def _slots_of(slot, seq, read, at, there, READ: tl.constexpr):
    if READ:
        at = tl.load(read + at, mask=there, other=0)
    return tl.load(slot + tl.load(seq + at, mask=there, other=0), mask=there, other=0)


def rows(slot: Tensor, seq: Tensor, read: Tensor | None = None, *, count: int) -> tuple[Tensor, Tensor, Tensor]:
    n = (seq if read is None else read).shape[0]
    slots, order, starts = (torch.empty(size, dtype=torch.int32, device=slot.device) for size in (n, n, count + 1))
    ranked = n <= MOST_RANKED
    blocks = triton.cdiv(n, _BLOCK)
    _find_rows[(blocks + count + 1,)](
        slot, seq, seq if read is None else read, slots, order, starts, n, blocks, READ=read is not None, RANK=ranked,
        BLOCK=_BLOCK, CHUNK=_CHUNK, num_warps=4,
    )  # fmt: skip
    return slots, order if ranked else torch.argsort(slots, stable=True).to(torch.int32), starts


@triton.jit(do_not_specialize=["first_part"])
def _adapt(
    y, x, low, order, starts, a, b, ranks, width, cols, parts, rank, first_part, first_col, C0: tl.constexpr, C1: tl.constexpr,
    C2: tl.constexpr, C3: tl.constexpr, MODE: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr, M: tl.constexpr,
    R: tl.constexpr, HELD: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """y [rows, cols] += B (A x) of one tile of rows, N outputs of one part. C0 to C3: outputs of up to four parts, from
    first_part and first_col on. low [rows, parts * rank] float32: the output of SHRINK, a part a program, and the input of
    EXPAND. R: ranks, of which EXPAND holds HELD at once. In BOTH they are equal."""
    s = tl.arange(0, BLOCK)
    begin = tl.load(starts + s, mask=s < SLOTS, other=0)
    end = tl.load(starts + s + 1, mask=s < SLOTS, other=0)
    cut = tl.where((s > 0) & (s < SLOTS), (end - begin + M - 1) // M, 0)
    after = tl.cumsum(cut, 0)
    tile = tl.program_id(0)
    slot = tl.sum(((after <= tile) & (s < SLOTS)).to(tl.int32), 0)
    if slot >= SLOTS:
        return
    block = tl.program_id(1)
    part = first_part
    col = first_col
    count = cols
    if MODE == 1:
        part += block
    else:
        count = C0
        past = tl.cdiv(C0, N)
        if block >= past:
            block, part, col, count = block - past, part + 1, col + C0, C1
            past = tl.cdiv(C1, N)
            if block >= past:
                block, part, col, count = block - past, part + 1, col + C1, C2
                past = tl.cdiv(C2, N)
                if block >= past:
                    block, part, col, count = block - past, part + 1, col + C2, C3
    held = tl.load(ranks + slot * parts + part)
    if held == 0:
        return
    inside = tl.sum(tl.where(s == slot, begin, 0), 0) + (tile - tl.sum(tl.where(s < slot, cut, 0), 0)) * M + tl.arange(0, M)
    ok = inside < tl.sum(tl.where(s == slot, end, 0), 0)
    row = tl.load(order + inside, mask=ok, other=0).to(tl.int64)
    r = tl.arange(0, R)
    r_ok = r < held
    down = tl.zeros([M, R], tl.float32)
    if MODE != 2:
        a_row = ((slot * parts + part).to(tl.int64) * rank + r) * width
        for start in range(0, width, K):
            k = start + tl.arange(0, K)
            k_ok = k < width
            xs = tl.load(x + row[:, None] * width + k[None, :], mask=ok[:, None] & k_ok[None, :], other=0.0)
            ws = tl.load(a + a_row[None, :] + k[:, None], mask=r_ok[None, :] & k_ok[:, None], other=0.0)
            down = tl.dot(xs, ws, down, input_precision="ieee")
    if MODE == 1:
        at = row[:, None] * (parts * rank) + part * rank + r[None, :]
        tl.store(low + at, down, mask=ok[:, None] & r_ok[None, :])
    else:
        c = block * N + tl.arange(0, N)
        c_ok = c < count
        added = tl.zeros([M, N], tl.float32)
        for start in range(0, R, HELD):
            q = start + tl.arange(0, HELD)
            q_ok = q < held
            lows = down
            if MODE == 2:
                at = row[:, None] * (parts * rank) + part * rank + q[None, :]
                lows = tl.load(low + at, mask=ok[:, None] & q_ok[None, :], other=0.0)
            b_row = (slot.to(tl.int64) * rank + q) * cols + col
            ups = tl.load(b + b_row[:, None] + c[None, :], mask=q_ok[:, None] & c_ok[None, :], other=0.0).to(tl.float32)
            added = tl.dot(lows, ups, added, input_precision="ieee")
        at = y + row[:, None] * cols + col + c[None, :]
        mask = ok[:, None] & c_ok[None, :]
        had = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        tl.store(at, (had + added).to(y.dtype.element_ty), mask=mask)


def add(
    tiles: TileSizes, y: Tensor, x: Tensor, slots: Tensor, order: Tensor, starts: Tensor, a: Tensor, b: Tensor, ranks: Tensor,
    *, rows: tuple[int, ...],
) -> Tensor:  # fmt: skip
    """Adds in the memory of y, where it is contiguous."""
    y, x = y.contiguous(), x.contiguous()
    (count, rank, cols), (n, width), parts = b.shape, x.shape, len(rows)
    if n == 0:
        return y
    held = max(16, triton.next_power_of_2(rank))
    few = n <= FEW and held <= MOST_RANKS
    low = y if few else torch.empty((n, parts * rank), dtype=torch.float32, device=y.device)
    most = min(n, triton.cdiv(n, _ROWS) + count - 1)
    wide = choose_inputs(tiles, width, held, x.dtype)
    block = min(128, max(16, triton.next_power_of_2(max(rows))))

    def launch(mode: int, first: int, col: int, some: tuple[int, ...], programs: int) -> None:
        c0, c1, c2, c3 = (*some, 0, 0, 0, 0)[:PARTS]
        _adapt[(most, programs)](
            y, x, low, order, starts, a, b, ranks, width, cols, parts, rank, first, col, C0=c0, C1=c1, C2=c2, C3=c3, MODE=mode,
            SLOTS=count, BLOCK=max(2, triton.next_power_of_2(count)), M=_ROWS, R=held,
            HELD=min(held, MOST_RANKS), N=block, K=wide, num_warps=4, num_stages=1 if mode == EXPAND else tiles.product.stages,
        )  # fmt: skip

    if not few:
        launch(SHRINK, 0, 0, (), parts)
    for first in range(0, parts, PARTS):
        some = rows[first : first + PARTS]
        launch(BOTH if few else EXPAND, first, sum(rows[:first]), some, sum(triton.cdiv(c, block) for c in some))
    return y


def choose_inputs(tiles: TileSizes, width: int, ranks: int, dtype: torch.dtype) -> int:
    """How many of the `width` inputs a program multiplies by so many ranks at once."""
    wide: int = min(tiles.product.inner, max(16, triton.next_power_of_2(width)), max(16, MOST_HELD // ranks))
    return min(wide, tiles.scalar) if dtype == torch.float32 else wide


def _fits(spec) -> str | None:
    return None if spec["dtype"] in DTYPES else f"runs {', '.join(DTYPES)}, not {spec['dtype']}"


def kernels(t: TileSizes) -> tuple[Kernel, ...]:
    return (
        Kernel("lora_rows", "triton", rows, batch_invariant=True),
        Kernel("lora_add", "triton", functools.partial(add, t), supports=_fits, batch_invariant=True),
    )
