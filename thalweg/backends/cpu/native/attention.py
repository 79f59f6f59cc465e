"""Paged attention in compiled code, read straight from the block table: no gather, no mask, the same bits in any batch. Norms
and rotary positions of q and k are done on the way where the model has them."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from thalweg.backends.cpu.native import NativeLibrary
from thalweg.errors import DeviceError
from thalweg.hal.attention import AttentionBackend, AttnSpec, QKPrologue, whole_sequences
from thalweg.hal.kv import KVLayout, kept_width
from thalweg.hal.parts.spans import Spans
from thalweg.hal.step import SCRATCH, StepBatch

ROWS, MOST_ROWS, MOST_DIM, MOST_LATENT = 48, 96, 512, 640
"""Rows (query tokens x query heads of a KV head) of one task. The others are limits of attention.inc, the last for latents."""
UNIT, LEAST_USED = 16, (7, 8)
"""Elements of a head are padded with zeros to a multiple of the first, where at least this part of them is used."""
LEAST_HEADS = 6
"""Heads of a task of latent attention, if it has more: each task reads the keys again."""
BLOCK = 16
"""Tokens of a block of a step's own."""
CODED = ("avx512vnni", "avx512bf16", "amx", "avxvnni", "neonbf16")
"""Instruction sets that read a cache in int8 as it is, four numbers at a time (cache.inc)."""
_L, _P, _F = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float


class _Job(ctypes.Structure):
    """`Attention` of core.h."""

    _fields_ = (
        *((n, _L) for n in ("type", "rounds", "heads", "kv_heads", "dim", "size", "tokens", "seqs", "columns", "window",
                            "chunk", "q_stride", "k_stride", "v_stride", "block_bytes", "latent", "both", "rotary", "pairs")),
        ("scale", _F), ("softcap", _F), ("eps", _F), ("offset", _F),
        *((n, _P) for n in ("table", "token_seq", "positions", "slots", "context", "query", "first", "tasks")),
        ("task_count", _L), ("per_task", _L),
        *((n, _P) for n in ("q", "k", "v", "sinks", "q_weight", "k_weight", "cos_sin", "kv", "out", "last")),
    )  # fmt: skip


class NativeAttention(AttentionBackend):
    """The first layer makes the data shared by a step's layers. It is kept in the step's plan, which lives as long as the
    step."""

    batch_invariant = True
    spans = True
    known_as = ("CPU_ATTN",)

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library  # its context ends with it
        self._context, self._attend = library.context, library.attend
        self._threads = library.threads
        self.name = f"native-{library.level}"

    def supports(self, spec: AttnSpec) -> str | None:
        if spec.kind not in ("full", "window", "chunked", "latent"):
            return f"runs kinds full, window, chunked and latent, not {spec.kind}"
        return self._fits(spec)

    def _fits(self, spec: AttnSpec) -> str | None:
        if spec.dtype not in ("float32", "bfloat16"):
            return f"runs float32 and bfloat16, not {spec.dtype}"
        if spec.kv_dtype not in ("", spec.dtype, "int8"):
            return f"the cache holds {spec.dtype} or int8, not {spec.kv_dtype}"
        if spec.kind == "latent":
            return _refuses_latent(spec)
        wide = _round_up(spec.head_dim)
        if LEAST_USED[1] * spec.head_dim < LEAST_USED[0] * wide or wide > MOST_DIM:
            return f"heads are multiples of {UNIT} up to {MOST_DIM}, or little less, not {spec.head_dim}"
        if spec.heads % spec.kv_heads or spec.heads // spec.kv_heads > MOST_ROWS:
            return f"{spec.heads} heads do not share {spec.kv_heads} KV heads evenly, at most {MOST_ROWS} each"
        return None

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        dtype = spec.kv_dtype or spec.dtype
        if spec.kind == "latent":
            shape = (1, 1, block_tokens, kept_width(spec.head_dim, dtype))
            return KVLayout(shape, dtype, f"kv-latent/{dtype}/{'x'.join(map(str, shape))}", apart=True)
        per = 4 if dtype == "int8" else 2
        if block_tokens % per:
            need = f"compiled attention needs a multiple of {per} for a cache in {dtype}; choose 16"
            raise DeviceError(f"block_size: {block_tokens}: {need}")
        shape = (2, spec.kv_heads, block_tokens, kept_width(_round_up(spec.head_dim), dtype))
        fours = dtype == "int8" and spec.dtype == "bfloat16" and self._library.level in CODED
        name = f"kv-head-{'fours' if fours else 'units'}/{dtype}/{'x'.join(map(str, shape))}"
        return KVLayout(shape, dtype, name, apart=True)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        more = _round_up(spec.head_dim) - spec.head_dim
        if not more or spec.kind == "latent":
            return self._run(q, k, v, kv, batch, group, spec, sinks)
        q, k, v = (torch.nn.functional.pad(x, (0, more)) for x in (q, k, v))  # zeros change neither scores nor values
        out, kv = self._run(q, k, v, kv, batch, group, replace(spec, head_dim=spec.head_dim + more), sinks)
        return out[..., : spec.head_dim], kv

    def fuses(self, spec: AttnSpec, prologue: QKPrologue) -> str | None:
        if spec.kind == "latent":
            return "latent keys come normed and rotated"
        if spec.head_dim % UNIT:
            return f"heads of {spec.head_dim} are padded to {_round_up(spec.head_dim)} after norms and rotation"
        if prologue.rotary_dim % 2 or not 0 < prologue.rotary_dim <= spec.head_dim:
            return f"turns an even number of a head's {spec.head_dim} elements, not {prologue.rotary_dim}"
        return None

    def attend_fused(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec, prologue: QKPrologue,
        cos_sin: Tensor, weights: tuple[Tensor, Tensor] | None = None, sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if cos_sin.dtype != torch.float32 or cos_sin.shape[1] != prologue.rotary_dim or not cos_sin.is_contiguous():
            raise ValueError(f"attend_fused: a table of {cos_sin.dtype} {list(cos_sin.shape)} does not fit {prologue}")
        if (weights is None) != (prologue.eps is None) or any(
            w.dtype != q.dtype or w.shape != q.shape[-1:] or not w.is_contiguous() for w in weights or ()
        ):
            raise ValueError(f"attend_fused: the norms' weights do not fit {prologue} and heads of {q.dtype} {list(q.shape)}")
        return self._run(q, k, v, kv, batch, group, spec, sinks, prologue, cos_sin, weights)

    def _run(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec, sinks: Tensor | None,
        prologue: QKPrologue | None = None, cos_sin: Tensor | None = None, weights: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """prologue None: q and k are already normed and rotated."""
        if batch.last_alone and not batch.uniform and self._library.tape is not None:
            batch = replace(batch, last_alone=False)  # which row is the last differs from replay to replay
        plan = cast(dict[str, Any], batch.metadata[group]) if batch.metadata else {}
        sizes = f"{spec.heads}/{spec.kv_heads}/{spec.head_dim}/{spec.latent}"
        key = f"native/{spec.kind}/{spec.window}/{sizes}/{spec.dtype}/{spec.kv_dtype}/{batch.last_alone}"
        result = plan.get(key)
        if result is None:
            result = plan[key] = self._job(batch, spec, batch.block_tables[group], kv.shape[3])
        return self._call(result, q, k, v, kv, spec, sinks, prologue, cos_sin, weights), kv

    def _call(
        self, result: tuple[Any, ...], q: Tensor, k: Tensor, v: Tensor, kv: Tensor, spec: AttnSpec, sinks: Tensor | None,
        prologue: QKPrologue | None, cos_sin: Tensor | None, weights: tuple[Tensor, Tensor] | None,
    ) -> Tensor:  # fmt: skip
        """result: by `_job`."""
        q, k, v = (x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous() for x in (q, k, v))
        job: _Job = result[0]
        out: Tensor = result[1]((*q.shape[:2], spec.latent or spec.head_dim), dtype=q.dtype)
        job.q_stride, job.k_stride, job.v_stride = q.stride(0), k.stride(0), v.stride(0)
        job.block_bytes = kv.stride(0) * kv.element_size()
        job.scale, job.softcap = spec.scale, spec.softcap
        job.q, job.k, job.v, job.kv, job.out = q.data_ptr(), k.data_ptr(), v.data_ptr(), kv.data_ptr(), out.data_ptr()
        sinks = None if sinks is None else sinks.to(q.dtype).contiguous()
        job.sinks = None if sinks is None else sinks.data_ptr()
        job.rotary, job.eps, job.offset = (
            (prologue.rotary_dim, prologue.eps or 0.0, prologue.offset) if prologue else (0, 0.0, 0.0)
        )
        job.pairs = int(prologue is not None and prologue.interleaved)
        job.cos_sin = None if cos_sin is None else cos_sin.data_ptr()
        job.q_weight, job.k_weight = (w.data_ptr() for w in weights) if weights else (None, None)
        if self._library.tape is not None:  # layers share a job, which each fills in again: a tape needs one of each
            job = _Job.from_buffer_copy(job)
            self._library.tape.keep((job, result))
        self._attend(self._context, ctypes.addressof(job))
        return out

    def _job(self, batch: StepBatch, spec: AttnSpec, table: Tensor, size: int) -> tuple[Any, ...]:
        """(the step's part of the job, how to make its output, references to keep alive). size: tokens of a block."""
        held = [table, batch.token_seq, batch.positions, batch.slots, batch.context, batch.query]
        held = [x.contiguous() for x in held]
        first = (batch.last_row + 1 - batch.query).contiguous()
        tokens, seqs = batch.tokens.shape[0], batch.slots.shape[0]
        queries = seqs if batch.last_alone else tokens
        parts = _parts(spec.heads, queries, seqs, self._threads) if spec.kind == "latent" else spec.kv_heads
        tasks, whole = _tasks(batch, spec.heads, parts, blind=self._library.tape is not None)
        job = _Job(
            type=0 if spec.dtype == "bfloat16" else 1, rounds=spec.kv_dtype == "int8", heads=spec.heads,
            kv_heads=parts, dim=spec.head_dim, latent=spec.latent, size=size, tokens=tokens, seqs=seqs,
            columns=held[0].shape[1], window=0 if spec.kind == "chunked" else spec.window,
            chunk=spec.window if spec.kind == "chunked" else 0, both=spec.kind == "encoder",
            task_count=len(tasks),
            per_task=max(1, min(64, -(-tokens // (2 * self._threads)))),
        )  # fmt: skip
        names = ("table", "token_seq", "positions", "slots", "context", "query")
        for name, x in zip(names, held, strict=True):
            setattr(job, name, x.data_ptr())
        job.first, job.tasks = first.data_ptr(), tasks.ctypes.data
        spans = batch.get(Spans) if spec.spans else None
        if spans is not None:
            held.append(spans.last.contiguous())
            job.last = held[-1].data_ptr()
        # Rows of padding belong to no task: they are not left as whatever the memory held.
        return job, torch.empty if whole else torch.zeros, held, first, tasks


class NativeEncoderAttention(NativeAttention):
    """The same for bidirectional attention. Keys and values lie in blocks of the step, which all of its layers use in turn.
    Nothing is kept."""

    def __init__(self, library: NativeLibrary) -> None:
        super().__init__(library)
        self.name = f"native-encoder-{library.level}"

    def supports(self, spec: AttnSpec) -> str | None:
        if spec.kind != "encoder":
            return f"runs kind encoder, not {spec.kind}"
        if spec.reach:
            return "adds nothing to scores by distance"
        return "sinks are not defined for encoders" if spec.sinks else self._fits(spec)

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        return KVLayout((0,), spec.dtype, "none")

    def _run(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec, sinks: Tensor | None,
        prologue: QKPrologue | None = None, cos_sin: Tensor | None = None, weights: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if batch.uniform == 1:  # a token sees only itself
            return v.repeat_interleave(spec.heads // spec.kv_heads, 1), kv
        plan = cast(dict[str, Any], batch.metadata[group]) if batch.metadata else {}
        key = f"native/encoder/{batch.last_alone}"
        result = plan.get(key)
        if result is None:
            blocks, table = _room(batch, spec)
            result = plan[key] = blocks, self._job(batch, spec, table, BLOCK)
        return self._call(result[1], q, k, v, result[0], spec, sinks, prologue, cos_sin, weights), kv


def _room(batch: StepBatch, spec: AttnSpec) -> tuple[Tensor, Tensor]:
    """(blocks for the keys and values of a step, the block table that gives each sequence its own). ValueError if a sequence
    began in an earlier step. Block 0 is scratch."""
    whole_sequences(batch)
    live = np.where(batch.slots.numpy() == SCRATCH, 0, -(-batch.query.numpy() // BLOCK)).astype(np.int64)
    table = np.zeros((len(live), max(1, int(live.max(initial=0)))), np.int32)
    first = 1 + np.cumsum(live) - live
    for s in np.flatnonzero(live):
        table[s, : live[s]] = np.arange(first[s], first[s] + live[s])
    shape = (1 + int(live.sum()), 2, spec.kv_heads, BLOCK, spec.head_dim)
    return torch.empty(shape, dtype=getattr(torch, spec.dtype)), torch.from_numpy(table)


def _round_up(head_dim: int) -> int:
    return -(-head_dim // UNIT) * UNIT


def _refuses_latent(spec: AttnSpec) -> str | None:
    if spec.kv_heads != 1 or not 0 < spec.latent <= spec.head_dim:
        return f"latent attention has one KV head and values in its keys, not {spec.kv_heads} and {spec.latent} elements"
    if spec.head_dim % 16 or spec.latent % 16 or spec.head_dim > MOST_LATENT:
        return f"latent keys and their values are multiples of 16 up to {MOST_LATENT}, not {spec.head_dim} and {spec.latent}"
    return None


def _parts(heads: int, tokens: int, seqs: int, threads: int) -> int:
    """Even parts of the heads of latent attention, of at most ROWS: as few as keep all threads at work."""
    divisors = [n for n in range(1, heads + 1) if heads % n == 0 and heads // n <= ROWS]
    enough = (n for n in divisors if max(n * seqs, tokens * heads // ROWS) >= 2 * threads or heads // n < 2 * LEAST_HEADS)
    return next(enough, divisors[-1])


def _tasks(batch: StepBatch, heads: int, kv_heads: int, blind: bool) -> tuple[np.ndarray, bool]:
    """(i32[n, 4] of core.h, longest first; does every row read belong to one?). blind: a step is being recorded, for batches
    with other values too. All their sequences are live and have equally many new tokens, or there is one sequence. Then only
    sizes count, and any order is as good."""
    each = np.arange(kv_heads, dtype=np.int32)
    if blind:
        slots = np.ones(batch.slots.shape[0], np.int32)
        query, context = (batch.uniform or batch.tokens.shape[0]) * slots, 0 * slots
    else:
        query, context, slots = batch.query.numpy(), batch.context.numpy(), batch.slots.numpy()
    live = np.flatnonzero((slots != SCRATCH) & (query > 0))
    if batch.last_alone:
        seq, at, count = live.astype(np.int32), query[live] - 1, np.ones(len(live), np.int32)
    else:
        seq, at, count = _tiles(query, live, max(1, ROWS // (heads // kv_heads)))
    order = np.argsort(-(context[seq] + at).astype(np.int64) * count, kind="stable")
    parts = [x[order] for x in (seq, at, count)]
    tasks = np.empty((len(seq), kv_heads, 4), np.int32)
    tasks[:, :, 1] = each
    for column, values in zip((0, 2, 3), parts, strict=True):
        tasks[:, :, column] = values[:, None]
    return tasks.reshape(-1, 4), bool(int(query[live].sum()) == batch.tokens.shape[0])


def _tiles(query: np.ndarray, live: np.ndarray, tile: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The new tokens of the sequences `live` by at most `tile`: (i32[n] sequences, the first token of each, how many)."""
    pieces = -(-query[live] // tile)
    seq = np.repeat(live, pieces).astype(np.int32)
    at = (np.arange(len(seq)) - np.repeat(np.cumsum(pieces) - pieces, pieces)).astype(np.int32) * tile
    return seq, at, np.minimum(tile, query[seq] - at)
