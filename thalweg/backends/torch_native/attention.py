"""Paged attention with torch's fused attention: gather blocks, attend, for many sequences at once where they decode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from thalweg.backends.host import cpu_name
from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.kv import KVLayout, kept_width
from thalweg.hal.ops.quantise import KV_DTYPES, decode_kv, encode_kv
from thalweg.hal.parts.spans import Spans
from thalweg.hal.step import SCRATCH, StepBatch

QUERIES = 256
"""Query tokens of one sequence attended at once. Smaller pieces spare later tokens' keys to earlier queries."""
ALIGN = 64
"""Decoding sequences are attended together if their key counts round up to the same multiple of this."""
GATHER = 4 << 20
"""Bytes of keys and values gathered for one call, so that they are still in the cache when they are attended to."""
KEYS = 16
"""Keys are padded to a multiple of this, where rows must not depend on the batch: an odd end is summed in another order. Blocks
of 16 tokens and more are padded already."""
SPAN = 512
"""The fused attention reads keys in spans of 512. Windows begin at a span."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Rules that keep a token's sums the same however many keys and rows (query tokens x query heads per KV head) come with it.
    They depend on the matrix products underneath, so on the processor."""

    rows: int
    """Rows are padded to a multiple of this."""
    tiled: bool
    """Products are of exactly so many rows."""
    short: int
    long: int
    """A last span of more keys than `short` and fewer than `long` is padded with masked keys to `long`."""


ZEN = Padding(4, False, 192, 384)
"""Padding for AMD's processors. There one to three odd rows are summed in another order. A span's sum is split in two
unless it is short: up to 192 keys in one piece, from 384 on after 384, in between half way."""
ANY = Padding(8, True, 0, SPAN)
"""Padding that assumes nothing: every product has one shape."""


def padding() -> Padding:
    return ZEN if "AMD" in cpu_name() else ANY


@dataclass(frozen=True, slots=True)
class _Work:
    """Sequences attended in one call: n sequences with m query tokens each, L keys each."""

    rows: Tensor  # rows of the batch
    count: int  # n
    blocks: Tensor  # i64[n * L / block_tokens]
    hidden: Tensor  # [n, 1, rows, L], 0 or -inf. rows are m * heads per KV head or some more
    tile: int  # rows of one product, 0 = all
    stale: tuple[tuple[int, int], ...]  # ranges of the n * L gathered tokens not of their sequence
    apart: Tensor | None  # i64[n, m, L], with a reach: the column of its bias that each score gets


class TorchPagedAttention(AttentionBackend):
    """Work lists depend on the layer's spec. The first layer that needs one makes it, and keeps it in the step's plan, which
    lives exactly as long as the step.

    Gathered keys and values from elsewhere (the tail of the last block, padding) are zeroed, not only masked. Values of an
    earlier owner, NaN included, thus cannot reach the result."""

    spans = biased = by_token = True
    known_as: tuple[str, ...] = ("TORCH_SDPA",)

    def __init__(self, batch_invariant: bool = True) -> None:
        """batch_invariant False: no padding of rows and spans, so the order of sums follows the batch."""
        self.batch_invariant = batch_invariant
        self._padding = padding() if batch_invariant else None
        self.name = "torch-paged" if batch_invariant else "torch-paged-variant"

    def supports(self, spec: AttnSpec) -> str | None:
        if spec.kind not in ("full", "window", "chunked", "latent"):
            return f"runs kinds full, window, chunked and latent, not {spec.kind}"
        if spec.kind == "latent" and (spec.kv_heads != 1 or not 0 < spec.latent <= spec.head_dim):
            return f"latent attention has one KV head and values in its keys, not {spec.kv_heads} and {spec.latent} elements"
        if spec.dtype not in ("float32", "bfloat16"):
            return f"runs float32 and bfloat16, not {spec.dtype}"
        if spec.kv_dtype not in ("", spec.dtype, *KV_DTYPES):
            return f"the cache holds {spec.dtype}, {', '.join(KV_DTYPES)}, not {spec.kv_dtype}"
        if spec.heads % spec.kv_heads:
            return f"{spec.heads} heads do not share {spec.kv_heads} KV heads evenly"
        if spec.reach and spec.heads != spec.kv_heads:
            return "a bias by distance is for each head with its own keys"
        if spec.softcap:
            return "the fused attention underneath has no softcap"
        if spec.sinks:
            return "the fused attention underneath has no sinks"
        return None

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        dtype = spec.kv_dtype or spec.dtype
        shape = (_arrays(spec), block_tokens, spec.kv_heads, kept_width(spec.head_dim, dtype))
        return KVLayout(shape, dtype, f"kv-token-head/{dtype}/{'x'.join(map(str, shape))}")

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        return self._all(q, k, v, kv, batch, group, spec, None)

    def attend_biased(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self._all(q, k, v, kv, batch, group, spec, bias)

    def _all(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        plan = cast(dict[str, Any], batch.metadata[group]) if batch.metadata else {}
        size = kv.shape[2]
        if "write" not in plan:
            plan["write"] = write_rows(batch, group, kv.shape[1] * size, size)
        flat = kv.view(-1, kv.shape[-2], kv.shape[-1])
        for new, at in ((k, 0), (v, size))[: _arrays(spec)]:
            result = encode_kv(new, spec.kv_dtype)
            if result.element_size() == 1:  # 8-bit floats have no index_copy
                flat, result = flat.view(torch.uint8), result.view(torch.uint8)
            flat.index_copy_(0, plan["write"] + at, result)
        key = f"work/{self.batch_invariant}/{spec.kind}/{spec.window}/{spec.heads // spec.kv_heads}/{spec.dtype}/{spec.reach}"
        if key not in plan:
            plan[key] = _work_list(batch, group, size, spec, self._padding)
        out = q.new_zeros(*q.shape[:2], spec.latent or spec.head_dim)
        for work in plan[key]:
            out[work.rows] = _attend(q, kv, work, spec, bias)
        return out, kv


def _arrays(spec: AttnSpec) -> int:
    """Arrays of a block: keys and values, or only latent keys."""
    return 1 if spec.kind == "latent" else 2


def _attend(q: Tensor, kv: Tensor, work: _Work, spec: AttnSpec, bias: Tensor | None) -> Tensor:
    n, per = work.count, spec.heads // spec.kv_heads
    arrays = _arrays(spec)
    blocks = kv.view(kv.shape[0] * arrays, -1)
    blocks = blocks.view(torch.uint8) if kv.element_size() == 1 else blocks  # 8-bit floats have no index_select
    held = []
    for which in range(arrays):
        tokens = blocks.index_select(0, work.blocks * arrays + which).view(kv.dtype).view(-1, spec.kv_heads, kv.shape[-1])
        tokens = decode_kv(tokens, spec.kv_dtype, q.dtype)
        for start, end in work.stale:
            tokens[start:end].zero_()
        held.append(tokens.view(n, -1, spec.kv_heads, spec.head_dim).transpose(1, 2))
    # The query heads of one KV head become rows, as query tokens are: one product per KV head, and rows enough.
    rows = q[work.rows].view(n, -1, spec.kv_heads, per, spec.head_dim)
    m = rows.shape[1]
    rows = rows.permute(0, 2, 1, 3, 4).reshape(n, spec.kv_heads, m * per, spec.head_dim)
    rows = F.pad(rows, (0, 0, 0, work.hidden.shape[2] - m * per))
    out = _product(rows, held[0], held[-1], work, spec.scale, bias)  # the fused attention wants values as long as keys
    out = out[:, :, : m * per].view(n, spec.kv_heads, m, per, spec.head_dim).permute(0, 2, 1, 3, 4)
    return out.reshape(n * m, spec.heads, spec.head_dim)[..., : spec.latent or spec.head_dim]


def _product(q: Tensor, k: Tensor, v: Tensor, work: _Work, scale: float, bias: Tensor | None) -> Tensor:
    """q [n, heads, rows, D], k and v [n, heads, L, D] -> [n, heads, rows, D]. bias: as in `attend_biased`."""
    n, heads, rows, dim = q.shape
    hidden = work.hidden
    if bias is not None and work.apart is not None:  # rows are query tokens, and padding behind them
        added = bias[:, work.apart].transpose(0, 1).to(hidden.dtype)
        hidden = hidden + F.pad(added, (0, 0, 0, rows - added.shape[2]))
    if work.tile in (0, rows):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=hidden, scale=scale)
    tiles = rows // work.tile
    q = q.view(n, heads, tiles, work.tile, dim).transpose(1, 2).flatten(0, 1)
    k, v = (x[:, None].expand(n, tiles, *x.shape[1:]).flatten(0, 1) for x in (k, v))  # of one sequence: no copy
    hidden = hidden.view(*hidden.shape[:2], tiles, work.tile, -1).transpose(1, 2).flatten(0, 1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=hidden, scale=scale)
    return out.view(n, tiles, heads, work.tile, dim).transpose(1, 2).reshape(n, heads, rows, dim)


def write_rows(batch: StepBatch, group: int, rows: int, size: int) -> Tensor:
    """i64[T]: where each token's key goes, in the cache seen as [blocks * rows] rows. A separate value, if any, goes `size`
    further."""
    table, seq = batch.block_tables[group], batch.token_seq
    column = (batch.positions // size).clamp(max=table.shape[1] - 1)
    block = torch.where(batch.slots[seq] == SCRATCH, SCRATCH, table[seq, column])
    at: Tensor = block.long() * rows + batch.positions % size
    return at


def _work_list(batch: StepBatch, group: int, size: int, spec: AttnSpec, exact: Padding | None) -> list[_Work]:
    """Decoding sequences together by size. The others one by one, QUERIES tokens at a time. Scratch rows are left
    out."""
    query, context, last = batch.query.tolist(), batch.context.tolist(), batch.last_row.tolist()
    together: dict[int, list[tuple[int, int, int]]] = {}
    works = []
    for s, slot in enumerate(batch.slots.tolist()):
        if slot == SCRATCH or query[s] == 0:
            continue
        if query[s] == 1:
            keys = context[s] + 1 - _low(context[s], size, spec, exact) * size
            together.setdefault(-(-keys // ALIGN), []).append((s, last[s], context[s]))
            continue
        for at in range(0, query[s], QUERIES):
            m = min(QUERIES, query[s] - at)
            works.append(_work(batch, group, size, spec, [(s, last[s] + 1 - query[s] + at, context[s] + at)], m, exact))
    token = 4 * spec.kv_heads * spec.head_dim * (1 if spec.dtype == "bfloat16" else 2)
    for width, members in together.items():
        most = max(1, GATHER // (width * ALIGN * token))
        works += [_work(batch, group, size, spec, members[i : i + most], 1, exact) for i in range(0, len(members), most)]
    return works


def _low(start: int, size: int, spec: AttnSpec, exact: Padding | None) -> int:
    """The first block gathered for a token at position `start`: the one its window begins in, or (exact) that of the span."""
    if not spec.window or (exact and SPAN % size):
        return 0
    step = SPAN if exact else size
    begin: int = max(0, _first(start, spec)) // step * step // size
    return begin


def _first(position: Any, spec: AttnSpec) -> Any:
    """Of the positions that a token at this one sees, where it has a window or a chunk."""
    return position // spec.window * spec.window if spec.kind == "chunked" else position - spec.window + 1


def _width(keys: int, size: int, exact: Padding | None) -> int:
    """Blocks gathered for this many keys."""
    width = -(-keys // size)
    while exact and (width * size % KEYS or exact.short < width * size % SPAN < exact.long):
        width += 1
    return width


def _work(
    batch: StepBatch,
    group: int,
    size: int,
    spec: AttnSpec,
    members: Sequence[tuple[int, int, int]],
    m: int,
    exact: Padding | None,
) -> _Work:
    """members: (sequence, first row, its position) of runs of m query tokens. exact: pad so that sums keep their order."""
    seqs, first, start = (torch.tensor(x) for x in zip(*members, strict=True))
    low = torch.tensor([_low(at, size, spec, exact) for _, _, at in members])
    rows = (first[:, None] + torch.arange(m)).flatten()
    spans = batch.get(Spans) if spec.spans else None
    ahead = None if spans is None or m == 1 else spans.last[rows, 0].view(-1, m, 1)
    end = start + m if ahead is None else torch.maximum(start + m, ahead.amax((1, 2)) + 1)
    width = _width(int((end - low * size).max()), size, exact)
    table = batch.block_tables[group][seqs]
    column = low[:, None] + torch.arange(width)
    blocks = table.gather(1, column.clamp(max=table.shape[1] - 1)).long()
    position = (low[:, None] * size + torch.arange(width * size))[:, None, :]  # [n, 1, L]
    at = (start[:, None] + torch.arange(m))[:, :, None]
    seen = position <= at if ahead is None else (position <= at) | (position <= ahead)  # [n, m, L]
    if spec.window:
        seen &= position >= _first(at, spec)
    stale = _false_runs(seen.any(1).flatten())
    per = spec.heads // spec.kv_heads
    dtype = torch.bfloat16 if spec.dtype == "bfloat16" else torch.float32
    hidden = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf")).repeat_interleave(per, 1)
    hidden = F.pad(hidden, (0, 0, 0, -m * per % exact.rows if exact else 0))
    apart = (position - at).clamp(-spec.reach, spec.reach) + spec.reach if spec.reach else None
    tile = exact.rows if exact and exact.tiled else 0
    return _Work(rows, len(members), blocks.flatten(), hidden[:, None], tile, stale, apart)


def _false_runs(flags: Tensor) -> tuple[tuple[int, int], ...]:
    """(start, end) of every run of False."""
    edges = F.pad(~flags, (1, 1)).to(torch.int8).diff().nonzero()[:, 0].tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))
