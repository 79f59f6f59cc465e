"""Paged attention: which launches a batch needs, and with which tiles.

Sequences with few new tokens (decode, verify) are split over their keys, a fixed number of keys per program, and the
parts joined. The others are cut into tiles of query tokens, a program each. Which tiles there are is host work
(`plan`). Sizes follow only from the bucket, so that a captured step replays for every batch of its bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from thalweg.backends.triton_kernels import paged
from thalweg.backends.triton_kernels.dependent import declare_dependence
from thalweg.backends.triton_kernels.prologue import turn_and_store
from thalweg.backends.triton_kernels.tiles import AttentionTile, TileSizes
from thalweg.hal.attention import AttentionBackend, AttnSpec, QKPrologue
from thalweg.hal.kv import BYTES, KVLayout, kept_width
from thalweg.hal.ops.quantise import KV_DTYPES
from thalweg.hal.step import StepBatch, StepShape

LOG2E = 1.4426950408889634
MOST_ROWS = 256
"""Query heads that may share a KV head: they lie in one tile (of latent attention: in several)."""
MOST_LATENT, MOST_BEYOND = 512, 128
"""Elements of a latent key that form its value, and elements beyond: a tile's sums over both lie in registers."""
CODED_ROWS = 32
"""Most rows of a latent tile over a cache of codes."""
PARTS = 1 << 28
"""Bytes that partial results of a decode may take. Where more would be needed, spans are longer. Where their length
may not change (exact), one program goes through all of a sequence's spans, to the same bits."""
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class _Fit:
    """A launch fitted to one spec: tile sizes, query heads of one tile, and the query tokens that fit it."""

    rows: int
    keys: int
    warps: int
    stages: int
    share: int

    @property
    def tokens(self) -> int:
        return self.rows // self.share


@dataclass(frozen=True, slots=True)
class _Cache:
    """A layer's cache in the form of kernels. held: the type of its values, "" for the model's dtype. scales: its bytes as
    float32."""

    codes: Tensor
    scales: Tensor
    size: int
    held: str

    @classmethod
    def of(cls, kv: Tensor, spec: AttnSpec) -> _Cache:
        if spec.kv_dtype == "int8":
            per_token = _halves(spec) * spec.kv_heads * kept_width(spec.head_dim, "int8")
            return cls(kv, kv.view(torch.float32), kv.shape[1] // per_token, "int8")
        if spec.kv_dtype in KV_DTYPES:
            codes = kv.view(torch.uint8)
            return cls(codes, codes, kv.shape[2], spec.kv_dtype)
        return cls(kv, kv, kv.shape[2], "")


class TritonPagedAttention(AttentionBackend):
    """exact: every tile has the same keys and as many rows for each warp, and prefills join their keys in the same spans as
    decodes do. A token's bits then depend on nothing but its sequence. Otherwise decode and prefill each use their best
    tiles."""

    known_as = ("TRITON_ATTN",)
    mixed = by_token = True

    def __init__(self, tiles: TileSizes, exact: bool) -> None:
        self._tiles = tiles
        self.batch_invariant = exact
        self.name = "triton-paged" if exact else "triton-paged-variant"

    def supports(self, spec: AttnSpec) -> str | None:
        if spec.kind not in ("full", "window", "latent"):
            return f"runs kinds full, window and latent, not {spec.kind}"
        if spec.dtype not in DTYPES:
            return f"runs {', '.join(DTYPES)}, not {spec.dtype}"
        if spec.kv_dtype not in ("", spec.dtype, *KV_DTYPES):
            return f"the cache holds {spec.dtype}, {', '.join(KV_DTYPES)}, not {spec.kv_dtype}"
        if spec.kv_dtype == "int8" and spec.head_dim * _halves(spec) % 4:
            even = "even head sizes" if _halves(spec) == 2 else "head sizes that are multiples of 4"
            return f"int8 caches have {even}, not {spec.head_dim}"
        if spec.kind == "latent":
            return self._refuses_latent(spec)
        if spec.heads % spec.kv_heads:
            return f"{spec.heads} heads do not share {spec.kv_heads} KV heads evenly"
        if spec.heads // spec.kv_heads > MOST_ROWS:
            return f"{spec.heads // spec.kv_heads} query heads per KV head, at most {MOST_ROWS}"
        if spec.head_dim > 256:
            return f"runs head sizes up to 256, not {spec.head_dim}"
        return None

    def _refuses_latent(self, spec: AttnSpec) -> str | None:
        if spec.kv_heads != 1 or not 0 < spec.latent <= spec.head_dim:
            return f"latent attention has one KV head and values in its keys, not {spec.kv_heads} and {spec.latent} elements"
        beyond = spec.head_dim - spec.latent
        if spec.latent > MOST_LATENT or beyond > MOST_BEYOND:
            return f"runs latent sizes up to {MOST_LATENT} and {MOST_BEYOND} elements beyond, not {spec.latent} and {beyond}"
        if spec.dtype == "float32" and not self._tiles.attention.latent.float32:
            return f"runs latent attention in bfloat16 and float16: {self._tiles.arch} has no matrix products of float32"
        return None

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        shape = (_halves(spec), block_tokens, spec.kv_heads, spec.head_dim)
        dims = "x".join(map(str, shape))
        if spec.kv_dtype == "int8":  # scales lie behind all codes of a block, so that the codes of a head stay aligned
            size = _halves(spec) * block_tokens * spec.kv_heads * kept_width(spec.head_dim, "int8")
            return KVLayout((size,), "int8", f"kv-token-head-scales/int8/{dims}")
        dtype = spec.kv_dtype or spec.dtype
        # Where -0 is NaN, blocks of others must not come in.
        special = "-without-negative-zero" if dtype == "float8_e4m3fn" and self._tiles.float8 == "float8_e4m3fnuz" else ""
        return KVLayout(shape, dtype, f"kv-token-head/{dtype}{special}/{dims}")

    def metadata(self, batch: StepBatch, group: int, spec: AttnSpec, shape: StepShape | None) -> Mapping[str, Any]:
        """{"tiles": i32[N, 2]}: (sequence, first query token) of every tile of the sequences with more than one new
        token, those with most keys first. -1 fills up. Nothing where every sequence has equally many and few
        (`_decode`). With an empty "alone" where no bucket says that there may be others."""
        uniform = batch.uniform if shape is None else shape.tokens // shape.seqs if shape.uniform else 0
        per = self._fit(spec, self._prefill(spec)).tokens
        if 0 < uniform <= self._fit(spec, self._short(spec)).tokens:
            return {}
        long = np.flatnonzero(batch.query > 1)
        if shape is None and not long.size:
            return {}
        count = -(-batch.query[long] // per)
        seq = np.repeat(long, count)
        first = (np.arange(len(seq)) - np.repeat(np.cumsum(count) - count, count)) * per
        order = np.argsort(-(batch.context[seq] + first), kind="stable")
        tiles = np.stack([seq[order], first[order]], 1).astype(np.int32)
        if shape is not None:
            room = shape.tokens // per + shape.seqs
            tiles = np.concatenate([tiles, np.full((room - len(tiles), 2), -1, np.int32)])
        alone = {"alone": np.empty(0, np.int32)} if shape is None and len(long) == len(batch.query) else {}
        return {"tiles": tiles, **alone}

    def plan_on_device(self, batch: StepBatch, group: int, spec: AttnSpec) -> dict[str, Any]:
        """The tiles of `metadata` for a bucket of this batch's sizes, in the order of sequences."""
        if 0 < batch.uniform <= self._fit(spec, self._short(spec)).tokens:
            return {}
        per = self._fit(spec, self._prefill(spec)).tokens
        query = batch.query.long()
        count = torch.where(query > 1, (query + (per - 1)) // per, 0)
        ends = count.cumsum(0)
        tile = torch.arange(batch.tokens.shape[0] // per + query.shape[0], device=query.device)
        seq = torch.searchsorted(ends, tile, right=True).clamp(max=query.shape[0] - 1)
        first = (tile - (ends - count).index_select(0, seq)) * per
        tiles = torch.where((tile < ends[-1])[:, None], torch.stack([seq, first], 1), -1)
        return {"tiles": tiles.to(torch.int32)}

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        done = self._make_counters(q, batch, group, spec)
        self._store(k, v, kv, batch, group, spec, done)
        return self._attend(q if q.stride(-1) == 1 else q.contiguous(), kv, batch, group, spec, sinks, done), kv

    def fuses(self, spec: AttnSpec, prologue: QKPrologue) -> str | None:
        if spec.kind == "latent":
            return "latent keys come normed and rotated"
        if prologue.rotary_dim % 2 or not 0 < prologue.rotary_dim <= spec.head_dim:
            return f"turns an even number of a head's {spec.head_dim} elements, not {prologue.rotary_dim}"
        return None

    def attend_fused(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec, prologue: QKPrologue,
        cos_sin: Tensor, weights: tuple[Tensor, Tensor] | None = None, sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        cache, table = _Cache.of(kv, spec), batch.block_tables[group]
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        tokens, rows = q.shape[0], q.shape[0] * (spec.heads + 2 * spec.kv_heads)
        per, block, warps = self._tiles.rows.split(_pad(spec.head_dim, 16))
        q_weight, k_weight = weights or (q, q)
        done = self._make_counters(q, batch, group, spec)
        turn_and_store[(triton.cdiv(rows, per),)](
            q, k, v, q_weight, k_weight, cos_sin, out, cache.codes, cache.scales, _pick(done, q), table, batch.token_seq,
            batch.positions, batch.slots, tokens, q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            cos_sin.stride(0), table.stride(0), table.shape[1], prologue.eps or 0.0, prologue.offset, Q_HEADS=spec.heads,
            HEADS=spec.kv_heads, DIM=spec.head_dim, HALF=prologue.rotary_dim // 2, INTERLEAVED=prologue.interleaved,
            NORM=prologue.eps is not None, OFFSET=prologue.offset != 0.0, SIZE=cache.size, HELD=cache.held,
            NATIVE=self._tiles.float8, CLEAR=done is not None, ROWS=per, BLOCK=block, num_warps=warps,
            **declare_dependence(self._tiles),
        )  # fmt: skip
        return self._attend(out, kv, batch, group, spec, sinks, done), kv

    def _attend(
        self, q: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec, sinks: Tensor | None, done: Tensor | None
    ) -> Tensor:  # fmt: skip
        """Of q, once keys and values are in the cache. done: as of `_make_counters`."""
        table, cache = batch.block_tables[group], _Cache.of(kv, spec)
        out = torch.empty((*q.shape[:2], _width(spec)), dtype=q.dtype, device=q.device)
        planned: Mapping[str, Any] = batch.metadata[group] if batch.metadata else {}
        tiles = planned.get("tiles")
        if tiles is not None:
            self._launch(q, cache, sinks, out, table, batch, spec, tiles, 0, None)
        if "alone" not in planned:
            most = max(1, batch.uniform) if tiles is None else 1
            self._launch(q, cache, sinks, out, table, batch, spec, None, most, done)
        return out

    def _make_counters(self, q: Tensor, batch: StepBatch, group: int, spec: AttnSpec) -> Tensor | None:
        """i32[T, KV_HEADS], which the launch that writes keys sets to 0, and in which decodes count the finished spans of each
        sequence. None where spans are joined by a launch."""
        tokens, joined = q.shape[0], self._tiles.attention.joined and spec.kind != "latent"
        if not joined or batch.block_tables[group].shape[0] > tokens:
            return None
        return torch.empty((tokens, spec.kv_heads), dtype=torch.int32, device=q.device)

    def _short(self, spec: AttnSpec) -> AttentionTile:
        a = self._tiles.attention.latent if spec.kind == "latent" else self._tiles.attention
        return a.exact if self.batch_invariant else a.decode

    def _prefill(self, spec: AttnSpec) -> AttentionTile:
        a = self._tiles.attention
        if spec.kind == "latent":
            return a.latent.exact if self.batch_invariant else a.latent.prefill
        if not self.batch_invariant:
            return a.prefill
        whole = spec.heads // spec.kv_heads <= a.exact.rows and spec.head_dim <= 128 and spec.kv_dtype in ("", spec.dtype)
        return a.exact_prefill if whole and spec.dtype != "float32" else a.exact

    def _fit(self, spec: AttnSpec, t: AttentionTile) -> _Fit:
        """Tiles for this spec. Rows are enough for the heads that share a KV head. Keys are fewer where a key is
        larger than 128 elements of two bytes, stages where the tiles of all stages would not fit. Rows are fewer and
        warps more where the results of a row would not fit one's registers."""
        if spec.kind == "latent":
            return self._fit_latent(spec, t)
        share, block = spec.heads // spec.kv_heads, _pad(spec.head_dim, 16)
        size = block * BYTES[spec.dtype]
        scalar = self._tiles.scalar if spec.dtype == "float32" else MOST_ROWS * 4
        rows = max(min(t.rows, scalar, MOST_ROWS if block <= 128 else 64), _pad(share))
        most = t.keys
        if spec.kv_dtype == "int8":  # its scales take registers
            most = 64 if self.batch_invariant else t.keys // 2
        keys = max(16, min(t.keys, most, t.keys * 256 // size, scalar))
        stages = t.stages
        while stages > 1 and rows * size + 2 * stages * keys * size > self._tiles.shared:
            stages -= 1
        warps = max(t.warps, 8) if block > 128 and rows >= 64 else t.warps
        return _Fit(rows, keys, warps, stages, share)

    def _fit_latent(self, spec: AttnSpec, t: AttentionTile) -> _Fit:
        """Tiles of latent attention. Heads share rows as far as a tile has them. Where rows may differ between
        launches, a decode has no more than its heads. Keys are fewer where a key is larger than 576 elements of two
        bytes. Both are fewer where dequantised codes take registers too."""
        size = (_pad(spec.latent, 16) + _pad(spec.head_dim - spec.latent)) * BYTES[spec.dtype]
        scalar = self._tiles.scalar if spec.dtype == "float32" else MOST_ROWS
        rows = min(t.rows, scalar, CODED_ROWS if spec.kv_dtype in KV_DTYPES else t.rows)
        if not self.batch_invariant and t is self._tiles.attention.latent.decode:
            rows = min(rows, _pad(spec.heads, 16))
        by_hand = spec.kv_dtype == "int8" or (spec.kv_dtype == "float8_e4m3fn" and not self._native(spec))
        most = t.keys // 2 if by_hand else t.keys
        keys = max(16, min(most, scalar, t.keys * 1152 // size))
        return _Fit(rows, keys, t.warps, t.stages, min(spec.heads, rows))

    def _native(self, spec: AttnSpec) -> str:
        """The 8-bit float whose codes in the cache the target converts itself, "" = none."""
        return self._tiles.float8 if spec.kind != "latent" or self._tiles.attention.latent.native else ""

    def _spans(self, spec: AttnSpec, rows: int, keys: int) -> tuple[int, int]:
        """(keys of a span, spans) of a decode of this many tokens x heads, with tables of so many keys. See PARTS."""
        split = self._tiles.attention.split
        spans, most = triton.cdiv(keys, split), max(1, PARTS // (rows * (_width(spec) + 2) * 4))
        if spans <= most:
            return split, spans
        if self.batch_invariant:
            return split, 1
        split *= triton.next_power_of_2(triton.cdiv(spans, most))
        return split, triton.cdiv(keys, split)

    def store(self, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec) -> None:
        """In place. Padding goes to the scratch block."""
        self._store(k, v, kv, batch, group, spec, None)

    def _store(
        self, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec, done: Tensor | None
    ) -> None:  # fmt: skip
        cache, table, latent = _Cache.of(kv, spec), batch.block_tables[group], spec.latent
        tokens, heads, dim = k.shape
        rows = self._tiles.attention.write
        k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (k, k if latent else v))
        paged.store[(triton.cdiv(tokens, rows),)](
            k, v, cache.codes, cache.scales, _pick(done, k), table, batch.token_seq, batch.positions, batch.slots, tokens,
            k.stride(0), k.stride(1), v.stride(0), v.stride(1), table.stride(0), table.shape[1], HEADS=heads, DIM=dim,
            LATENT=latent, SIZE=cache.size, HELD=cache.held, NATIVE=self._tiles.float8, CLEAR=done is not None, ROWS=rows,
            HEADS_PAD=_pad(heads), BLOCK=_pad(dim, 16), num_warps=4, **declare_dependence(self._tiles),
        )  # fmt: skip

    def _launch(
        self, q: Tensor, cache: _Cache, sinks: Tensor | None, out: Tensor, table: Tensor, batch: StepBatch, spec: AttnSpec,
        tiles: Tensor | None, decode: int, done: Tensor | None,
    ) -> None:  # fmt: skip
        """tiles: the tiled launch. None: that of sequences with up to `decode` new tokens, split over their keys."""
        fit = self._fit(spec, self._short(spec) if tiles is None else self._prefill(spec))
        tokens, exact, width = table.shape[0] * decode, self.batch_invariant, _width(spec)
        split, spans = self._tiles.attention.split, 1
        if tiles is None:
            split, spans = self._spans(spec, tokens * spec.heads, table.shape[1] * cache.size)
        parts, joined = spans > 1, spans > 1 and done is not None
        part = part_ml = out
        if parts:
            part = torch.empty((tokens, spec.heads, spans, width), dtype=torch.float32, device=q.device)
            part_ml = torch.empty((tokens, spec.heads, spans, 2), dtype=torch.float32, device=q.device)
        where = (batch.slots, batch.context, batch.query, batch.last_row)
        work = table if tiles is None else tiles
        sinks = q if sinks is None else sinks
        paged.attend[(work.shape[0], triton.cdiv(spec.heads, fit.share), spans)](
            q, cache.codes, cache.scales, sinks, out, part, part_ml, _pick(done, out), work, table, *where, spec.scale * LOG2E,
            q.stride(0), q.stride(1), table.stride(0), spans, HEADS=spec.heads, KV_HEADS=spec.kv_heads, SHARE=fit.share,
            DIM=spec.head_dim, LATENT=spec.latent, SIZE=cache.size, WINDOW=spec.window, SOFTCAP=spec.softcap,
            TILED=tiles is not None, DECODE=decode, SPLIT=split, JOIN=exact, PARTS=parts, JOINED=joined, HELD=cache.held,
            NATIVE=self._native(spec), SINKS=spec.sinks, PRECISION="ieee", M=fit.rows, KEYS=fit.keys, BLOCK=_pad(width, 16),
            REST=_pad(spec.head_dim - width, 16) if spec.head_dim > width else 0, num_warps=fit.warps,
            num_stages=fit.stages, enable_fp_fusion=not exact, **declare_dependence(self._tiles),
        )  # fmt: skip
        if parts and not joined:
            rows = min(4, _pad(spec.heads))
            paged.join[(tokens, triton.cdiv(spec.heads, rows))](
                part, part_ml, sinks, out, *where, spans, HEADS=spec.heads, DIM=width, WINDOW=spec.window, DECODE=decode,
                SPLIT=split, SINKS=spec.sinks, ROWS=rows, BLOCK=_pad(width, 16), num_warps=4, enable_fp_fusion=not exact,
                **declare_dependence(self._tiles),
            )  # fmt: skip


def _pick(tensor: Tensor | None, other: Tensor) -> Tensor:
    """The argument of a kernel that reads it only where there is one."""
    return other if tensor is None else tensor


def _halves(spec: AttnSpec) -> int:
    """Keys and values, or keys that serve as both."""
    return 1 if spec.kind == "latent" else 2


def _width(spec: AttnSpec) -> int:
    """Elements of a value."""
    return spec.latent if spec.kind == "latent" else spec.head_dim


def _pad(n: int, least: int = 1) -> int:
    """The next power of two, `least` or more (matrix instructions multiply at least 16 elements)."""
    return max(least, 1 << max(0, n - 1).bit_length())


def attention(t: TileSizes) -> tuple[AttentionBackend, ...]:
    """The attention backends of this library, in order of preference."""
    return (TritonPagedAttention(t, exact=False), TritonPagedAttention(t, exact=True))
