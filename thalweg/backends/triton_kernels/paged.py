"""The Triton code of paged attention: store keys and values, attend over blocks, join partial results.

Softmax runs online over tiles of keys (Milakov & Gimelshein 2018; Dao 2022). A span is what one pass makes of a range of
keys: per query row the largest score m, the sum of exp2(score - m), and the weighted values acc. Spans are joined in the
order of their keys. A tile or span in which a row sees nothing changes no bit of that row's result, so neither the other
rows of a tile nor the number of spans visited can.
"""

import triton
import triton.language as tl


@triton.jit
def store(
    k, v, kv, table, token_seq, positions, slots, tokens, k_token, k_head, v_token, v_head, table_row, table_width,
    HEADS: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, HEADS_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Keys and values of ROWS tokens into kv [blocks, 2, SIZE, HEADS, DIM]; those of the scratch slot into block 0."""
    t = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    there = t < tokens
    seq = tl.load(token_seq + t, mask=there, other=0).to(tl.int64)
    position = tl.load(positions + t, mask=there, other=0)
    slot = tl.load(slots + seq, mask=there, other=0)
    column = tl.minimum(position // SIZE, table_width - 1)
    block = tl.load(table + seq * table_row + column, mask=there & (slot != 0), other=0).to(tl.int64)
    base = (block * 2 * SIZE + position % SIZE) * (HEADS * DIM)
    i = tl.arange(0, HEADS_PAD * BLOCK)
    head, d = i // BLOCK, i % BLOCK
    ok = there[:, None] & ((head < HEADS) & (d < DIM))[None, :]
    put = base[:, None] + (head * DIM + d)[None, :]
    key = tl.load(k + t[:, None] * k_token + (head * k_head + d)[None, :], mask=ok)
    tl.store(kv + put, key, mask=ok)
    value = tl.load(v + t[:, None] * v_token + (head * v_head + d)[None, :], mask=ok)
    tl.store(kv + put + SIZE * HEADS * DIM, value, mask=ok)


@triton.jit
def _span(
    rows, position, kv, table, low, begin, end, kv_head, scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(m, total, acc) of query rows [M, BLOCK] at `position` [M] over the keys in [begin, end) that are not below `low`.
    scale: of scores, times log2(e). table: that of the sequence."""
    d, n = tl.arange(0, BLOCK), tl.arange(0, KEYS)
    m = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, BLOCK], tl.float32)
    for start in range(begin // KEYS * KEYS, end, KEYS):
        keys = start + n
        held = (keys >= low) & (keys >= begin) & (keys < end)
        block = tl.load(table + keys // SIZE, mask=held, other=0).to(tl.int64)
        at = ((block * 2 * SIZE + keys % SIZE) * HEADS + kv_head) * DIM
        ok = held[:, None] & (d < DIM)[None, :]
        k = tl.load(kv + at[:, None] + d[None, :], mask=ok, other=0.0)
        scores = tl.dot(rows, tl.trans(k), input_precision=PRECISION) * scale
        if SOFTCAP > 0:  # tanh(x) = 1 - 2 / (exp(2 x) + 1), here with exp2 and scores that carry log2(e)
            scores = SOFTCAP * 1.4426950408889634 * (1.0 - 2.0 / (tl.exp2(scores * (2.0 / SOFTCAP)) + 1.0))
        seen = held[None, :] & (keys[None, :] <= position[:, None])
        if WINDOW > 0:
            seen = seen & (keys[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        new = tl.maximum(m, tl.max(scores, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp2(scores - safe[:, None])
        fade = tl.exp2(m - safe)
        v = tl.load(kv + at[:, None] + d[None, :] + SIZE * HEADS * DIM, mask=ok, other=0.0)
        total = total * fade + tl.sum(p, 1)
        acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
        m = new
    return m, total, acc


@triton.jit
def attend(
    q, kv, out, part, part_ml, tiles, table, slots, context, query, last_row, scale, q_token, q_head, table_row, spans,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, TILED: tl.constexpr, DECODE: tl.constexpr, SPLIT: tl.constexpr, JOIN: tl.constexpr,
    PARTS: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile of query rows of one KV head.

    TILED: program 0 takes tile i, tiles i32[N, 2] = (sequence, its first query token; -1 = nothing), all its keys: in
    spans of SPLIT that are joined (JOIN), or in one. Otherwise program 0 takes a sequence of at most DECODE query tokens
    and program 2 one span of SPLIT keys of it, leaving (m, sum) and acc in part_ml and part (PARTS), or the result in out.
    """
    share: tl.constexpr = HEADS // KV_HEADS
    per_tile: tl.constexpr = M // share
    kv_head = tl.program_id(1)
    if TILED:
        seq = tl.load(tiles + tl.program_id(0) * 2).to(tl.int64)
        first = tl.load(tiles + tl.program_id(0) * 2 + 1)
        if seq < 0:
            return
        new = tl.load(query + seq)
    else:
        seq = tl.program_id(0).to(tl.int64)
        first = 0
        new = tl.load(query + seq)
        if new > DECODE:
            return
    past = tl.load(context + seq)
    i = tl.arange(0, M)
    token = first + i // share
    head = kv_head * share + i % share
    mine = (i < per_tile * share) & (token < new)
    row = tl.load(last_row + seq).to(tl.int64) + 1 - new + token
    d = tl.arange(0, BLOCK)
    ok = mine[:, None] & (d < DIM)[None, :]
    put = (row * HEADS + head)[:, None] * DIM + d[None, :]
    end = past + tl.minimum(first + per_tile, new)
    low = tl.maximum(past + first - WINDOW + 1, 0) if WINDOW > 0 else 0
    if tl.load(slots + seq) == 0:  # padding: nobody looks, but what follows must be finite
        if TILED or tl.program_id(2) == 0:
            tl.store(out + put, tl.zeros([M, BLOCK], out.dtype.element_ty), mask=ok)
        return
    rows = tl.load(q + row[:, None] * q_token + head[:, None] * q_head + d[None, :], mask=ok, other=0.0)
    at = past + token
    own = table + seq * table_row
    if TILED:
        if JOIN:
            m = tl.full([M], float("-inf"), tl.float32)
            total = tl.zeros([M], tl.float32)
            acc = tl.zeros([M, BLOCK], tl.float32)
            for span in range(low // SPLIT, tl.cdiv(end, SPLIT)):
                stop = tl.minimum(span * SPLIT + SPLIT, end)
                m2, total2, acc2 = _span(
                    rows, at, kv, own, low, span * SPLIT, stop, kv_head, scale,
                    KV_HEADS, DIM, SIZE, WINDOW, SOFTCAP, PRECISION, M, KEYS, BLOCK,
                )  # fmt: skip
                both = tl.maximum(m, m2)
                safe = tl.where(both == float("-inf"), 0.0, both)
                a, b = tl.exp2(m - safe), tl.exp2(m2 - safe)
                total = total * a + total2 * b
                acc = acc * a[:, None] + acc2 * b[:, None]
                m = both
        else:
            m, total, acc = _span(
                rows, at, kv, own, low, low, end, kv_head, scale,
                KV_HEADS, DIM, SIZE, WINDOW, SOFTCAP, PRECISION, M, KEYS, BLOCK,
            )  # fmt: skip
    else:
        span = tl.program_id(2)
        begin, stop = span * SPLIT, tl.minimum(span * SPLIT + SPLIT, end)
        if PARTS and (begin >= end or begin + SPLIT <= low):
            return
        m, total, acc = _span(
            rows, at, kv, own, low, begin, stop, kv_head, scale,
            KV_HEADS, DIM, SIZE, WINDOW, SOFTCAP, PRECISION, M, KEYS, BLOCK,
        )  # fmt: skip
        if PARTS:
            place = ((seq * DECODE + token) * HEADS + head) * spans + span
            tl.store(part_ml + place * 2, m, mask=mine)
            tl.store(part_ml + place * 2 + 1, total, mask=mine)
            tl.store(part + place[:, None] * DIM + d[None, :], acc, mask=ok)
            return
    total = tl.where(total > 0, total, 1.0)
    tl.store(out + put, (acc / total[:, None]).to(out.dtype.element_ty), mask=ok)


@triton.jit
def join(
    part, part_ml, out, slots, context, query, last_row, spans,
    HEADS: tl.constexpr, DIM: tl.constexpr, WINDOW: tl.constexpr, DECODE: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Joins the spans of ROWS heads of one query token, first to last, as `attend` does where it joins."""
    seq, first = (tl.program_id(0) // DECODE).to(tl.int64), tl.program_id(0) % DECODE
    new = tl.load(query + seq)
    if (new > DECODE) | (first >= new):
        return
    if tl.load(slots + seq) == 0:
        return
    past = tl.load(context + seq)
    low = tl.maximum(past - WINDOW + 1, 0) if WINDOW > 0 else 0
    head = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK)
    mine = head < HEADS
    ok = mine[:, None] & (d < DIM)[None, :]
    m = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, BLOCK], tl.float32)
    for span in range(low // SPLIT, tl.cdiv(past + new, SPLIT)):
        place = ((seq * DECODE + first) * HEADS + head) * spans + span
        m2 = tl.load(part_ml + place * 2, mask=mine, other=float("-inf"))
        total2 = tl.load(part_ml + place * 2 + 1, mask=mine, other=0.0)
        acc2 = tl.load(part + place[:, None] * DIM + d[None, :], mask=ok, other=0.0)
        both = tl.maximum(m, m2)
        safe = tl.where(both == float("-inf"), 0.0, both)
        a, b = tl.exp2(m - safe), tl.exp2(m2 - safe)
        total = total * a + total2 * b
        acc = acc * a[:, None] + acc2 * b[:, None]
        m = both
    total = tl.where(total > 0, total, 1.0)
    row = tl.load(last_row + seq).to(tl.int64) + 1 - new + first
    put = (row * HEADS + head)[:, None] * DIM + d[None, :]
    tl.store(out + put, (acc / total[:, None]).to(out.dtype.element_ty), mask=ok)
