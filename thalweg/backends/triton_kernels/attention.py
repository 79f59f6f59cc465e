"""Paged attention: which launches a batch needs, and with which tiles.

Sequences with few new tokens (decode, verify) are split over their keys, a fixed number of keys per program, and the parts
joined; the others are cut into tiles of query tokens, a program each. Which tiles there are is host work (`plan`), with
sizes that follow from the bucket alone, so that a captured step replays for every batch of its bucket.
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
from thalweg.backends.triton_kernels.tiles import Attend, Tiles
from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.kv import KVLayout
from thalweg.hal.ops.quantise import KV_DTYPES
from thalweg.hal.step import StepBatch, StepShape

LOG2E = 1.4426950408889634
MOST_ROWS = 256
"""Query heads that may share a KV head: they lie in one tile."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class _Fit:
    """A launch fitted to one spec: tile sizes, and the query tokens that fit one tile."""

    rows: int
    keys: int
    warps: int
    stages: int
    tokens: int


@dataclass(frozen=True, slots=True)
class _Cache:
    """A layer's cache as kernels take it. held: what its values are, "" for the model's dtype; scales: its bytes as float32."""

    codes: Tensor
    scales: Tensor
    size: int
    held: str

    @classmethod
    def of(cls, kv: Tensor, spec: AttnSpec) -> _Cache:
        if spec.kv_dtype == "int8":
            return cls(kv, kv.view(torch.float32), kv.shape[1] // (2 * spec.kv_heads * (spec.head_dim + 4)), "int8")
        if spec.kv_dtype in KV_DTYPES:
            codes = kv.view(torch.uint8)
            return cls(codes, codes, kv.shape[2], spec.kv_dtype)
        return cls(kv, kv, kv.shape[2], "")


class PagedAttention(AttentionBackend):
    """exact: every tile of every launch has the same shape, and prefills join their keys in the same spans as decodes do,
    so a token's bits depend on nothing but its sequence. Otherwise decode and prefill use the tiles each likes best."""

    def __init__(self, tiles: Tiles, exact: bool) -> None:
        self._tiles = tiles
        self.batch_invariant = exact
        self.name = "triton-paged" if exact else "triton-paged-as-it-comes"

    def supports(self, spec: AttnSpec) -> str | None:
        if spec.kind not in ("full", "window"):
            return f"runs kinds full and window, not {spec.kind}"
        if spec.dtype not in BYTES:
            return f"runs {', '.join(BYTES)}, not {spec.dtype}"
        if spec.kv_dtype not in ("", spec.dtype, *KV_DTYPES):
            return f"the cache holds {spec.dtype}, {', '.join(KV_DTYPES)}, not {spec.kv_dtype}"
        if spec.kv_dtype == "int8" and spec.head_dim % 2:
            return f"int8 caches have even head sizes, not {spec.head_dim}"
        if spec.heads % spec.kv_heads:
            return f"{spec.heads} heads do not share {spec.kv_heads} KV heads evenly"
        if spec.heads // spec.kv_heads > MOST_ROWS:
            return f"{spec.heads // spec.kv_heads} query heads per KV head, at most {MOST_ROWS}"
        if spec.head_dim > 256:
            return f"runs head sizes up to 256, not {spec.head_dim}"
        return None

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        dims = f"2x{block_tokens}x{spec.kv_heads}x{spec.head_dim}"
        if spec.kv_dtype == "int8":  # scales lie behind all codes of a block, so that the codes of a head stay aligned
            size = 2 * block_tokens * spec.kv_heads * (spec.head_dim + 4)
            return KVLayout((size,), "int8", f"kv-token-head-scales/int8/{dims}")
        dtype = spec.kv_dtype or spec.dtype
        return KVLayout((2, block_tokens, spec.kv_heads, spec.head_dim), dtype, f"kv-token-head/{dtype}/{dims}")

    def plan(self, batch: StepBatch, group: int, spec: AttnSpec, shape: StepShape | None) -> Mapping[str, Any]:
        """{"tiles": i32[N, 2]}: (sequence, first query token) of every tile of the sequences with more than one new token,
        those with most keys first; -1 fills up. Nothing where every sequence has equally many and few (`_decode`)."""
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
        return {"tiles": tiles}

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        table = batch.block_tables[group]
        cache = _Cache.of(kv, spec)
        self.store(k, v, kv, batch, group, spec)
        if q.stride(-1) != 1:
            q = q.contiguous()
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        tiles = batch.plans[group].get("tiles") if batch.plans else None
        if batch.plans and tiles is not None:
            self._launch(q, cache, sinks, out, table, batch, spec, tiles, 0)
        self._launch(q, cache, sinks, out, table, batch, spec, None, max(1, batch.uniform) if tiles is None else 1)
        return out, kv

    def _short(self, spec: AttnSpec) -> Attend:
        a = self._tiles.attention
        return a.exact if self.batch_invariant else a.decode

    def _prefill(self, spec: AttnSpec) -> Attend:
        a = self._tiles.attention
        return a.exact if self.batch_invariant else a.prefill

    def _fit(self, spec: AttnSpec, t: Attend) -> _Fit:
        """Tiles for this spec: rows enough for the heads that share a KV head, keys fewer where a key is larger than 128
        elements of two bytes, stages fewer where the tiles of all stages would not fit, rows fewer and warps more where
        the results of a row would not fit one's registers."""
        share, block = spec.heads // spec.kv_heads, _pad(spec.head_dim, 16)
        size = block * BYTES[spec.dtype]
        scalar = self._tiles.scalar if spec.dtype == "float32" else MOST_ROWS * 4
        rows = max(min(t.rows, scalar, MOST_ROWS if block <= 128 else 64), _pad(share))
        most = 64 if spec.kv_dtype == "int8" else t.keys  # its scales take registers
        keys = max(16, min(t.keys, most, t.keys * 256 // size, scalar))
        stages = t.stages
        while stages > 1 and rows * size + 2 * stages * keys * size > self._tiles.shared:
            stages -= 1
        warps = max(t.warps, 8) if block > 128 and rows >= 64 else t.warps
        return _Fit(rows, keys, warps, stages, rows // share)

    def store(self, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec) -> None:
        """In place. Padding goes to the scratch block."""
        cache, table = _Cache.of(kv, spec), batch.block_tables[group]
        tokens, heads, dim = k.shape
        rows = self._tiles.attention.write
        k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (k, v))
        paged.store[(triton.cdiv(tokens, rows),)](
            k, v, cache.codes, cache.scales, table, batch.token_seq, batch.positions, batch.slots, tokens, k.stride(0),
            k.stride(1), v.stride(0), v.stride(1), table.stride(0), table.shape[1], HEADS=heads, DIM=dim, SIZE=cache.size,
            HELD=cache.held, ROWS=rows, HEADS_PAD=_pad(heads), BLOCK=_pad(dim, 16), num_warps=4,
        )  # fmt: skip

    def _launch(
        self, q: Tensor, cache: _Cache, sinks: Tensor | None, out: Tensor, table: Tensor, batch: StepBatch, spec: AttnSpec,
        tiles: Tensor | None, decode: int,
    ) -> None:  # fmt: skip
        """tiles: the tiled launch; None: that of sequences with up to `decode` new tokens, split over their keys."""
        fit = self._fit(spec, self._short(spec) if tiles is None else self._prefill(spec))
        split, seqs, exact = self._tiles.attention.split, table.shape[0], self.batch_invariant
        spans = triton.cdiv(table.shape[1] * cache.size, split)
        parts = tiles is None and spans > 1
        part = part_ml = out
        if parts:
            part = torch.empty((seqs * decode, spec.heads, spans, spec.head_dim), dtype=torch.float32, device=q.device)
            part_ml = torch.empty((seqs * decode, spec.heads, spans, 2), dtype=torch.float32, device=q.device)
        where = (batch.slots, batch.context, batch.query, batch.last_row)
        grid = (seqs, spec.kv_heads, spans) if tiles is None else (tiles.shape[0], spec.kv_heads, 1)
        work = table if tiles is None else tiles
        sinks = q if sinks is None else sinks
        paged.attend[grid](
            q, cache.codes, cache.scales, sinks, out, part, part_ml, work, table, *where, spec.scale * LOG2E, q.stride(0),
            q.stride(1), table.stride(0), spans, HEADS=spec.heads, KV_HEADS=spec.kv_heads, DIM=spec.head_dim,
            SIZE=cache.size, WINDOW=spec.window, SOFTCAP=spec.softcap, TILED=tiles is not None, DECODE=decode, SPLIT=split,
            JOIN=exact, PARTS=parts, HELD=cache.held, NATIVE=self._tiles.float8, SINKS=spec.sinks, PRECISION="ieee",
            M=fit.rows, KEYS=fit.keys, BLOCK=_pad(spec.head_dim, 16), num_warps=fit.warps, num_stages=fit.stages,
            enable_fp_fusion=not exact,
        )  # fmt: skip
        if parts:
            rows = min(4, _pad(spec.heads))
            paged.join[(seqs * decode, triton.cdiv(spec.heads, rows))](
                part, part_ml, sinks, out, *where, spans, HEADS=spec.heads, DIM=spec.head_dim, WINDOW=spec.window,
                DECODE=decode, SPLIT=split, SINKS=spec.sinks, ROWS=rows, BLOCK=_pad(spec.head_dim, 16), num_warps=4,
                enable_fp_fusion=not exact,
            )  # fmt: skip


def _pad(n: int, least: int = 1) -> int:
    """The next power of two, `least` or more (matrix instructions multiply at least 16 elements)."""
    return max(least, 1 << max(0, n - 1).bit_length())


def attention(t: Tiles) -> tuple[AttentionBackend, ...]:
    """The attention backends of this library, in order of preference."""
    return (PagedAttention(t, exact=False), PagedAttention(t, exact=True))
