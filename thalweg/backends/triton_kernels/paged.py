"""The Triton code of paged attention: store keys and values, attend over blocks, join partial results.

Softmax runs online over tiles of keys (Milakov & Gimelshein 2018, Dao 2022). A span is the result of one pass over a
range of keys. Per query row it is the largest score m, the sum of exp2(score - m), and the weighted values acc. Spans
are joined in the order of their keys. A tile or span in which a row sees nothing changes no bit of that row's result.
Therefore neither the other rows of a tile nor the number of spans visited can.

LATENT > 0 (multi-head latent attention, DeepSeek-AI 2024): a token has one key, and its first LATENT elements are its value.
Only keys are kept, and a tile is read once for both products. The elements beyond (rotary, say) make a separate product, as
tiles are powers of two wide.
"""

import triton
import triton.language as tl

from thalweg.backends.triton_kernels import codes
from thalweg.backends.triton_kernels.dependent import wait_for_launches


@triton.jit
def _put(x, kv, scale, ok, put, put_scale, HELD: tl.constexpr, NATIVE: tl.constexpr):
    """Rows x [N, BLOCK] into the cache in its type. put [N, BLOCK]: where. put_scale [N]: where their scales go."""
    if HELD == "float8_e4m3fn":
        tl.store(kv + put, codes.to_e4m3(x.to(tl.float32), NATIVE), mask=ok)
    elif HELD == "float8_e5m2":
        tl.store(kv + put, codes.to_e5m2(x.to(tl.float32)), mask=ok)
    elif HELD == "int8":
        wide = x.to(tl.float32)
        most = tl.div_rn(tl.max(tl.abs(wide), 1), 127.0)
        most = tl.where(most > 0, most, 1.0)
        code = codes.nearest(tl.div_rn(wide, tl.broadcast_to(most[:, None], wide.shape)))
        tl.store(kv + put, tl.minimum(tl.maximum(code, -127.0), 127.0).to(tl.int8), mask=ok)
        tl.store(scale + put_scale, most, mask=tl.max(ok.to(tl.int32), 1) > 0)
    else:
        tl.store(kv + put, x, mask=ok)


@triton.jit(do_not_specialize=["tokens", "table_row", "table_width"])
def store(
    k, v, kv, scales, done, table, token_seq, positions, slots, tokens, k_token, k_head, v_token, v_head, table_row,
    table_width, HEADS: tl.constexpr, DIM: tl.constexpr, LATENT: tl.constexpr, SIZE: tl.constexpr, HELD: tl.constexpr,
    NATIVE: tl.constexpr, CLEAR: tl.constexpr, ROWS: tl.constexpr, HEADS_PAD: tl.constexpr, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Keys and (unless LATENT) values of ROWS tokens into kv, those of the scratch slot into block 0. kv's blocks are
    [2, SIZE, HEADS, DIM] (LATENT: 1). Of int8 (HELD) scales [2, SIZE, HEADS] follow. CLEAR: done i32[tokens, HEADS] becomes 0,
    for `attend` with JOINED."""
    wait_for_launches(DEPENDENT)
    i = tl.arange(0, ROWS * HEADS_PAD)
    t, head = (tl.program_id(0) * ROWS + i // HEADS_PAD).to(tl.int64), i % HEADS_PAD
    there = (t < tokens) & (head < HEADS)
    if CLEAR:
        tl.store(done + t * HEADS + head, 0, mask=there)
    seq = tl.load(token_seq + t, mask=there, other=0).to(tl.int64)
    position = tl.load(positions + t, mask=there, other=0)
    slot = tl.load(slots + seq, mask=there, other=0)
    column = tl.minimum(position // SIZE, table_width - 1)
    block = tl.load(table + seq * table_row + column, mask=there & (slot != 0), other=0).to(tl.int64)
    place = position % SIZE * HEADS + head
    values: tl.constexpr = SIZE * HEADS * DIM
    codes_end: tl.constexpr = values if LATENT > 0 else 2 * values
    stride: tl.constexpr = codes_end // DIM * (DIM + 4) if HELD == "int8" else codes_end
    put_scale = block * (stride // 4) + codes_end // 4 + place
    d = tl.arange(0, BLOCK)
    ok = there[:, None] & (d < DIM)[None, :]
    put = (block * stride + place * DIM)[:, None] + d[None, :]
    key = tl.load(k + (t * k_token + head * k_head)[:, None] + d[None, :], mask=ok, other=0.0)
    _put(key, kv, scales, ok, put, put_scale, HELD, NATIVE)
    if LATENT == 0:
        value = tl.load(v + (t * v_token + head * v_head)[:, None] + d[None, :], mask=ok, other=0.0)
        _put(value, kv, scales, ok, put + values, put_scale + SIZE * HEADS, HELD, NATIVE)


@triton.jit
def _numbers(code, kind, HELD: tl.constexpr, NATIVE: tl.constexpr):
    """Values loaded from the cache as operands, without scales (float8_e4m3fn: halved where `is_fnuz`)."""
    if HELD == "float8_e4m3fn":
        code = codes.from_e4m3(code, NATIVE).to(kind)
    elif HELD == "float8_e5m2":
        code = codes.from_e5m2(code).to(kind)
    elif HELD == "int8":
        code = code.to(tl.float32).to(kind)
    return code


@triton.jit
def _meet_keys(
    m, total, acc, rows, rest, position, kv, scales, table, low, start, begin, end, sure, kv_head, scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, LATENT: tl.constexpr, SIZE: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, HELD: tl.constexpr, NATIVE: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr,
    KEYS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """(m, total, acc) of query rows [M, BLOCK] at `position` [M], after the next KEYS keys, from `start`. Keys are those in
    [begin, end) not below `low`. Every row sees those below `sure`. scale: of scores, times log2(e). table: that of the
    sequence. rest [M, REST]: the rows' elements beyond LATENT."""
    d, n = tl.arange(0, BLOCK), tl.arange(0, KEYS)
    width: tl.constexpr = LATENT if LATENT > 0 else DIM
    values: tl.constexpr = SIZE * HEADS * DIM
    codes_end: tl.constexpr = values if LATENT > 0 else 2 * values
    stride: tl.constexpr = codes_end // DIM * (DIM + 4) if HELD == "int8" else codes_end
    double: tl.constexpr = HELD == "float8_e4m3fn" and codes.is_fnuz(NATIVE)
    keys = start + n
    held = (keys >= low) & (keys >= begin) & (keys < end)
    block = tl.load(table + keys // SIZE, mask=held, other=0).to(tl.int64)
    place = keys % SIZE * HEADS + kv_head
    at = block * stride + place * DIM
    ok = held[:, None] & (d < width)[None, :]
    k = _numbers(tl.load(kv + at[:, None] + d[None, :], mask=ok, other=0), rows.dtype, HELD, NATIVE)
    scores = tl.dot(rows, tl.trans(k), input_precision=PRECISION)
    if REST > 0:
        more = LATENT + tl.arange(0, REST)
        beyond = tl.load(kv + at[:, None] + more[None, :], mask=held[:, None] & (more < DIM)[None, :], other=0)
        beyond = _numbers(beyond, rows.dtype, HELD, NATIVE)
        scores = tl.dot(rest, tl.trans(beyond), scores, input_precision=PRECISION)
    scores *= scale * 2.0 if double else scale
    if HELD == "int8":
        at_scale = block * (stride // 4) + codes_end // 4 + place
        scores *= tl.load(scales + at_scale, mask=held, other=0.0)[None, :]
    if SOFTCAP > 0:  # tanh(x) = 1 - 2 / (exp(2 x) + 1), here with exp2 and scores that carry log2(e)
        scores = SOFTCAP * 1.4426950408889634 * (1.0 - 2.0 / (tl.exp2(scores * (2.0 / SOFTCAP)) + 1.0))
    if WINDOW > 0 or LATENT > 0 or start < begin or start < low or start + KEYS > sure:
        seen = held[None, :] & (keys[None, :] <= position[:, None])
        if WINDOW > 0:
            seen = seen & (keys[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
    new = tl.maximum(m, tl.max(scores, 1))
    safe = tl.where(new == float("-inf"), 0.0, new)
    p = tl.exp2(scores - safe[:, None])
    fade = tl.exp2(m - safe)
    if LATENT > 0:
        v = k
    else:
        v = tl.load(kv + at[:, None] + d[None, :] + values, mask=ok, other=0)
        v = _numbers(v, rows.dtype, HELD, NATIVE)
    total = total * fade + tl.sum(p, 1)
    if HELD == "int8":
        at_scale += 0 if LATENT > 0 else SIZE * HEADS
        p *= tl.load(scales + at_scale, mask=held, other=0.0)[None, :]
    acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
    return new, total, acc


@triton.jit
def _empty_state(M: tl.constexpr, BLOCK: tl.constexpr):
    """(m, total, acc) of rows that have met no key."""
    return tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32), tl.zeros([M, BLOCK], tl.float32)


@triton.jit
def _span(
    rows, rest, position, kv, scales, table, low, begin, end, sure, kv_head, scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, LATENT: tl.constexpr, SIZE: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, HELD: tl.constexpr, NATIVE: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr,
    KEYS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """(m, total, acc) of query rows over the keys in [begin, end) not below `low`."""
    double: tl.constexpr = HELD == "float8_e4m3fn" and codes.is_fnuz(NATIVE)
    m, total, acc = _empty_state(M, BLOCK)
    for start in range(begin // KEYS * KEYS, end, KEYS):
        m, total, acc = _meet_keys(
            m, total, acc, rows, rest, position, kv, scales, table, low, start, begin, end, sure, kv_head, scale,
            HEADS, DIM, LATENT, SIZE, WINDOW, SOFTCAP, HELD, NATIVE, PRECISION, M, KEYS, BLOCK, REST,
        )  # fmt: skip
    return m, total, acc * 2.0 if double else acc


@triton.jit
def _merge_states(m, total, acc, m2, total2, acc2):
    """One span after another, as one."""
    both = tl.maximum(m, m2)
    safe = tl.where(both == float("-inf"), 0.0, both)
    a, b = tl.exp2(m - safe), tl.exp2(m2 - safe)
    return both, total * a + total2 * b, acc * a[:, None] + acc2 * b[:, None]


@triton.jit
def _spans(
    rows, rest, position, kv, scales, table, low, end, sure, kv_head, scale, SPLIT: tl.constexpr,
    HEADS: tl.constexpr, DIM: tl.constexpr, LATENT: tl.constexpr, SIZE: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, HELD: tl.constexpr, NATIVE: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr,
    KEYS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """The result of `_span` over all keys from low to end: in spans of SPLIT keys, joined in sequence, or (0) in one. Spans
    are in one loop where registers suffice. A loop for each loads its first keys only when the one before it has ended."""
    if SPLIT > 0 and (LATENT > 0 or BLOCK > 128):  # without registers for two results in one loop
        m, total, acc = _empty_state(M, BLOCK)
        for span in range(low // SPLIT, tl.cdiv(end, SPLIT)):
            stop = tl.minimum(span * SPLIT + SPLIT, end)
            m2, total2, acc2 = _span(
                rows, rest, position, kv, scales, table, low, span * SPLIT, stop, tl.minimum(stop, sure), kv_head, scale,
                HEADS, DIM, LATENT, SIZE, WINDOW, SOFTCAP, HELD, NATIVE, PRECISION, M, KEYS, BLOCK, REST,
            )  # fmt: skip
            m, total, acc = _merge_states(m, total, acc, m2, total2, acc2)
    elif SPLIT > 0:
        tl.static_assert(SPLIT % KEYS == 0)
        double: tl.constexpr = HELD == "float8_e4m3fn" and codes.is_fnuz(NATIVE)
        m, total, acc = _empty_state(M, BLOCK)
        m2, total2, acc2 = _empty_state(M, BLOCK)
        for start in range(low // KEYS * KEYS, end, KEYS):
            if start % SPLIT == 0:
                m, total, acc = _merge_states(m, total, acc, m2, total2, acc2 * 2.0 if double else acc2)
                m2, total2, acc2 = _empty_state(M, BLOCK)
            m2, total2, acc2 = _meet_keys(
                m2, total2, acc2, rows, rest, position, kv, scales, table, low, start, low, end, sure, kv_head, scale,
                HEADS, DIM, LATENT, SIZE, WINDOW, SOFTCAP, HELD, NATIVE, PRECISION, M, KEYS, BLOCK, REST,
            )  # fmt: skip
        m, total, acc = _merge_states(m, total, acc, m2, total2, acc2 * 2.0 if double else acc2)
    else:
        m, total, acc = _span(
            rows, rest, position, kv, scales, table, low, low, end, sure, kv_head, scale,
            HEADS, DIM, LATENT, SIZE, WINDOW, SOFTCAP, HELD, NATIVE, PRECISION, M, KEYS, BLOCK, REST,
        )  # fmt: skip
    return m, total, acc


@triton.jit
def _keep_part(m, total, acc, part_ml, part, place, mine, ok, d, width):
    """Writes the result of a span: rows at place [M], `width` elements each."""
    tl.store(part_ml + place * 2, m, mask=mine)
    tl.store(part_ml + place * 2 + 1, total, mask=mine)
    tl.store(part + place[:, None] * width + d[None, :], acc, mask=ok)


@triton.jit
def _join_parts(part_ml, part, place, begin, end, mine, ok, d, width, M: tl.constexpr, BLOCK: tl.constexpr):
    """The spans begin .. end - 1 of rows whose first lies at place [M], joined first to last."""
    m, total, acc = _empty_state(M, BLOCK)
    for span in range(begin, end):
        at = place + span
        m2 = tl.load(part_ml + at * 2, mask=mine, other=float("-inf"))
        total2 = tl.load(part_ml + at * 2 + 1, mask=mine, other=0.0)
        acc2 = tl.load(part + at[:, None] * width + d[None, :], mask=ok, other=0.0)
        m, total, acc = _merge_states(m, total, acc, m2, total2, acc2)
    return m, total, acc


@triton.jit
def _finalize(m, total, acc, sinks, head, mine, SINKS: tl.constexpr):
    """The result of rows of these heads."""
    if SINKS:
        sink = tl.load(sinks + head, mask=mine, other=0.0).to(tl.float32) * 1.4426950408889634
        both = tl.maximum(m, sink)
        fade = tl.exp2(m - both)
        total = total * fade + tl.exp2(sink - both)
        acc = acc * fade[:, None]
    total = tl.where(total > 0, total, 1.0)
    return acc / total[:, None]


@triton.jit
def _leave_part(
    m, total, acc, part, part_ml, done, out, put, sinks, place, span, first_span, end_span, head, mine, ok, d,
    width: tl.constexpr, JOINED: tl.constexpr, SINKS: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The state of one span of the spans first_span to end_span - 1, for `join`. JOINED: done points to the count of the spans
    that are complete, and the last of them writes the result."""
    if JOINED:
        last = end_span - first_span == 1
        if last:  # as the join of one span would, so that the bits are the same
            none, zero, zeros = _empty_state(M, BLOCK)
            m, total, acc = _merge_states(none, zero, zeros, m, total, acc)
        else:
            _keep_part(m, total, acc, part_ml, part, place + span, mine, ok, d, width)
            tl.debug_barrier()  # all of the part is written before it is counted
            before = tl.atomic_add(done, 1, sem="acq_rel")
            last = before == end_span - first_span - 1
            if last:
                m, total, acc = _join_parts(part_ml, part, place, first_span, end_span, mine, ok, d, width, M, BLOCK)
        if last:
            tl.store(out + put, _finalize(m, total, acc, sinks, head, mine, SINKS).to(out.dtype.element_ty), mask=ok)
    else:
        _keep_part(m, total, acc, part_ml, part, place + span, mine, ok, d, width)


@triton.jit(do_not_specialize=["table_row", "spans"])
def attend(
    q, kv, scales, sinks, out, part, part_ml, done, tiles, table, slots, context, query, last_row, scale, q_token, q_head,
    table_row, spans,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SHARE: tl.constexpr, DIM: tl.constexpr, LATENT: tl.constexpr,
    SIZE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, TILED: tl.constexpr, DECODE: tl.constexpr,
    SPLIT: tl.constexpr, JOIN: tl.constexpr, PARTS: tl.constexpr, JOINED: tl.constexpr, HELD: tl.constexpr,
    NATIVE: tl.constexpr, SINKS: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, KEYS: tl.constexpr,
    BLOCK: tl.constexpr, REST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One tile of query rows of the SHARE heads of program 1, which share a KV head.

    TILED: program 0 is tile i, tiles i32[N, 2] = (sequence, its first query token, -1 = nothing). Otherwise it is a sequence of
    at most DECODE query tokens. PARTS: program 2 is one span of SPLIT keys, and leaves (m, sum) and acc in part_ml and part.
    Otherwise all keys are this program's, in spans of SPLIT that it joins (JOIN), or in one. JOINED: the programs of a sequence
    and KV head leave joining to the last of them to finish. done i32[>= seqs, KV_HEADS] counts them, and is 0 before.
    """
    wait_for_launches(DEPENDENT)
    width: tl.constexpr = LATENT if LATENT > 0 else DIM
    per_tile: tl.constexpr = M // SHARE
    kv_head = 0 if LATENT > 0 else tl.program_id(1)
    if TILED:
        seq = tl.load(tiles + tl.program_id(0) * 2).to(tl.int64)
        first = tl.load(tiles + tl.program_id(0) * 2 + 1)
        if seq < 0:
            return
    else:
        seq = tl.program_id(0).to(tl.int64)
        first = 0
    new, past = tl.load(query + seq), tl.load(context + seq)
    if not TILED:
        other = new > DECODE
        if PARTS:  # tables are wide and most sequences short: most programs end here, before they wait for anything else
            other = other | (tl.program_id(2) * SPLIT >= past + new)
        if other:
            return
    i = tl.arange(0, M)
    token = first + i // SHARE
    head = tl.program_id(1) * SHARE + i % SHARE
    mine = (i < per_tile * SHARE) & (token < new)
    if HEADS % SHARE:
        mine = mine & (head < HEADS)
    row = tl.load(last_row + seq).to(tl.int64) + 1 - new + token
    d = tl.arange(0, BLOCK)
    ok = mine[:, None] & (d < width)[None, :]
    put = (row * HEADS + head)[:, None] * width + d[None, :]
    end = past + tl.minimum(first + per_tile, new)
    low = tl.maximum(past + first - WINDOW + 1, 0) if WINDOW > 0 else 0
    if tl.load(slots + seq) == 0:  # padding: the result is unused, but must lead to finite values
        if TILED or tl.program_id(2) == 0:
            tl.store(out + put, tl.zeros([M, BLOCK], out.dtype.element_ty), mask=ok)
        return
    at_row = row[:, None] * q_token + head[:, None] * q_head
    rows = tl.load(q + at_row + d[None, :], mask=ok, other=0.0)
    rest = rows
    if REST > 0:
        more = LATENT + tl.arange(0, REST)
        rest = tl.load(q + at_row + more[None, :], mask=mine[:, None] & (more < DIM)[None, :], other=0.0)
    at = past + token
    own = table + seq * table_row
    sure = past + tl.minimum(first, new - 1) + 1
    if PARTS:
        span = tl.program_id(2)
        begin, stop = span * SPLIT, tl.minimum(span * SPLIT + SPLIT, end)
        if begin >= end or begin + SPLIT <= low:
            return
        m, total, acc = _span(
            rows, rest, at, kv, scales, own, low, begin, stop, tl.minimum(stop, sure), kv_head, scale,
            KV_HEADS, DIM, LATENT, SIZE, WINDOW, SOFTCAP, HELD, NATIVE, PRECISION, M, KEYS, BLOCK, REST,
        )  # fmt: skip
        place = ((seq * DECODE + token) * HEADS + head) * spans
        _leave_part(
            m, total, acc, part, part_ml, done + seq * KV_HEADS + kv_head, out, put, sinks, place, span, low // SPLIT,
            tl.cdiv(end, SPLIT), head, mine, ok, d, width, JOINED, SINKS, M, BLOCK,
        )  # fmt: skip
        return
    m, total, acc = _spans(
        rows, rest, at, kv, scales, own, low, end, sure, kv_head, scale, SPLIT if JOIN else 0,
        KV_HEADS, DIM, LATENT, SIZE, WINDOW, SOFTCAP, HELD, NATIVE, PRECISION, M, KEYS, BLOCK, REST,
    )  # fmt: skip
    tl.store(out + put, _finalize(m, total, acc, sinks, head, mine, SINKS).to(out.dtype.element_ty), mask=ok)


@triton.jit(do_not_specialize=["spans"])
def join(
    part, part_ml, sinks, out, slots, context, query, last_row, spans,
    HEADS: tl.constexpr, DIM: tl.constexpr, WINDOW: tl.constexpr, DECODE: tl.constexpr, SPLIT: tl.constexpr,
    SINKS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Joins the spans of ROWS heads of one query token, first to last, as `attend` does where it joins. DIM: of values."""
    wait_for_launches(DEPENDENT)
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
    place = ((seq * DECODE + first) * HEADS + head) * spans
    begin, end = low // SPLIT, tl.cdiv(past + new, SPLIT)
    m, total, acc = _join_parts(part_ml, part, place, begin, end, mine, ok, d, DIM, ROWS, BLOCK)
    done = _finalize(m, total, acc, sinks, head, mine, SINKS)
    row = tl.load(last_row + seq).to(tl.int64) + 1 - new + first
    put = (row * HEADS + head)[:, None] * DIM + d[None, :]
    tl.store(out + put, done.to(out.dtype.element_ty), mask=ok)
