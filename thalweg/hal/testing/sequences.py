"""Random mixed batches over a paged cache, and the attention expected for them: a dense computation in float64."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from thalweg.hal import ops
from thalweg.hal.attention import AttentionBackend, AttnSpec, QKPrologue, RelativePositions
from thalweg.hal.device import Device, Executable
from thalweg.hal.fields import Array, Part, dim
from thalweg.hal.ops.quantise import decode_kv, encode_kv
from thalweg.hal.step import SamplingArrays, StateBox, StepBatch, StepResult, StepShape


@dataclass(frozen=True, slots=True)
class SequenceCase:
    """One sequence: its tokens' q [n, heads, D], k and v [n, kv_heads, D] (float32), and its new tokens."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    query: int

    @property
    def length(self) -> int:
        return int(self.q.shape[0])


def story(rng: np.random.Generator, spec: AttnSpec, length: int, query: int) -> SequenceCase:
    q, k, v = (
        rng.normal(size=(length, h, spec.head_dim)).astype(np.float32) for h in (spec.heads, spec.kv_heads, spec.kv_heads)
    )
    return SequenceCase(q, k, k[..., : spec.latent] if spec.kind == "latent" else v, query)


def sinks(spec: AttnSpec) -> np.ndarray | None:
    """[heads], some of which outweigh every score of a short sequence. None where the spec has none."""
    return np.linspace(-2, 4, spec.heads, dtype=np.float32) if spec.sinks else None


def bias(spec: AttnSpec) -> np.ndarray | None:
    """[heads, 2 * reach + 1], another number for every head and distance. None where the spec has no reach."""
    n = 2 * spec.reach + 1
    return np.sin(np.arange(spec.heads * n, dtype=np.float32)).reshape(-1, n) * 2 if spec.reach and not spec.placed else None


def places(spec: AttnSpec, rows: int = 9) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """The row of each distance, and a key and a query for each row [rows, heads, D]. None where the spec is not placed."""
    if not spec.placed:
        return None
    n = 2 * spec.reach + 1
    result = np.sin(np.arange(2 * rows * spec.heads * spec.head_dim, dtype=np.float32) ** 1.5)
    keys, queries = result.reshape(2, rows, spec.heads, spec.head_dim)
    return np.arange(n) * rows // n, keys, queries


def dense(s: SequenceCase, spec: AttnSpec, dtype: torch.dtype, ahead: np.ndarray | None = None) -> np.ndarray:
    """softmax(q k^T * scale) v of the last `query` tokens -> [query, heads, D]. Computed in float64 from inputs rounded to
    dtype, keys and values also to the cache's type. ahead: the last position that each sees, if after its own."""
    q = torch.from_numpy(s.q).to(dtype).double().numpy()
    k, v = (_round_trip(torch.from_numpy(a).to(dtype), spec).double().numpy() for a in (s.k, s.v))
    v = k[..., : spec.latent] if spec.kind == "latent" else v
    kv, share = spec.kv_heads, spec.heads // spec.kv_heads
    more = sinks(spec)
    sink = -np.inf if more is None else more.reshape(kv, share, 1).astype(np.float64)
    out = np.empty((s.query, spec.heads, v.shape[-1]))
    for i in range(s.query):
        p = s.length - s.query + i
        low = max(0, p - spec.window + 1) if spec.window else 0
        if spec.kind == "chunked":
            low = p // spec.window * spec.window
        end = 1 + (p if ahead is None else max(p, int(ahead[i])))
        # Heads that share keys are the rows of one product: [kv, share, keys].
        scores = q[p].reshape(kv, share, -1) @ k[low:end].transpose(1, 2, 0) * spec.scale
        if spec.softcap:
            scores = spec.softcap * np.tanh(scores / spec.softcap)
        top = np.maximum(scores.max(-1, keepdims=True), sink)
        w = np.exp(scores - top)
        total = w.sum(-1, keepdims=True) + np.exp(sink - top)
        out[i] = (w / total @ v[low:end].transpose(1, 0, 2)).reshape(spec.heads, -1)
    return out


def _round_trip(x: torch.Tensor, spec: AttnSpec) -> torch.Tensor:
    """x as the cache gives it back."""
    return decode_kv(encode_kv(x, spec.kv_dtype), spec.kv_dtype, torch.float32) if spec.kv_dtype else x


@dataclass(frozen=True, slots=True)
class QKPrologueCase:
    """A prologue and its (host) arrays. Norms have a weight for q and one for k."""

    prologue: QKPrologue
    cos_sin: torch.Tensor
    weights: tuple[torch.Tensor, ...]

    def of(self, s: SequenceCase) -> SequenceCase:
        """The story with q and k after the ops. Their weights give the dtype."""
        q, k = (torch.from_numpy(a).to(self.weights[0].dtype) for a in (s.q, s.k))
        if self.prologue.eps is not None:
            q, k = (
                ops.rms_norm(x, w, eps=self.prologue.eps, offset=self.prologue.offset)
                for x, w in zip((q, k), self.weights, strict=True)
            )
        positions = torch.arange(s.length, dtype=torch.int32)
        q, k = ops.rope(
            q, k, positions, self.cos_sin, rotary_dim=self.prologue.rotary_dim, interleaved=self.prologue.interleaved
        )
        return replace(s, q=q.float().numpy(), k=k.float().numpy())


def build_fused(rng: np.random.Generator, spec: AttnSpec, prologue: QKPrologue, length: int) -> QKPrologueCase:
    """Angles of positions below `length`, weights that multiply by about 1."""
    half = prologue.rotary_dim // 2
    angle = torch.arange(length)[:, None] / 100 ** (torch.arange(half)[None] / half)
    weights = torch.from_numpy(1 - prologue.offset + 0.2 * rng.standard_normal((2, spec.head_dim))).to(
        getattr(torch, spec.dtype)
    )
    return QKPrologueCase(prologue, torch.cat([angle.cos(), angle.sin()], 1), (weights[0].clone(), weights[1].clone()))


def tables(rng: np.random.Generator, stories: Sequence[SequenceCase], size: int, spare: int = 3) -> tuple[np.ndarray, int]:
    """Shuffled block tables i32[S, B], and how many blocks the cache has (scratch and a few unused ones included)."""
    need = [-(-s.length // size) for s in stories]
    blocks = sum(need) + spare + 1
    free = iter(rng.permutation(np.arange(1, blocks)).astype(np.int32))
    table = np.zeros((len(stories), max(need)), np.int32)
    for s, n in enumerate(need):
        table[s, :n] = [next(free) for _ in range(n)]
    return table, blocks


def batch_of(table: np.ndarray, start: Sequence[int], query: Sequence[int]) -> StepBatch:
    """The batch that computes tokens start..start + query - 1 of each sequence. Slots are 1, 2, ..."""
    context, new = np.array(start, np.int32), np.array(query, np.int32)
    n, i32 = len(new), np.int32
    last = (np.cumsum(new) - 1).astype(i32)
    positions = np.concatenate([np.arange(c, c + q, dtype=i32) for c, q in zip(context, new, strict=True)])
    return StepBatch(
        tokens=np.zeros(len(positions), i32), token_seq=np.repeat(np.arange(n, dtype=i32), new), positions=positions,
        slots=np.arange(1, n + 1, dtype=i32), context=context, query=new, last_row=last, emit=np.ones(n, bool),
        block_tables=(table,), sampling=SamplingArrays.greedy(n),
    )  # fmt: skip


@dataclass(slots=True)
class Heads(Part):
    """The input of attention, where no model computes it. Padding is NaN: it must reach no result."""

    q: Array = dim("T heads head", np.float32, fill=np.nan)
    k: Array = dim("T kv_heads head", np.float32, fill=np.nan)
    v: Array = dim("T kv_heads value", np.float32, fill=np.nan)


class Cache:
    """One layer's cache on a device, driven step by step through compiled executables."""

    def __init__(self, device: Device, backend: AttentionBackend, spec: AttnSpec, size: int, blocks: int) -> None:
        self._device, self._backend, self._spec = device, backend, spec
        self.box = StateBox(device.alloc_kv(backend.layout(spec, size), blocks))
        self._made: dict[tuple[StepShape | None, QKPrologue | None, bool], Executable] = {}
        more = sinks(spec)
        self._sinks = None if more is None else device.put(torch.from_numpy(more).to(getattr(torch, spec.dtype)))
        if (added := bias(spec)) is not None:
            self._sinks = device.put(torch.from_numpy(added))
        if (placed := places(spec)) is not None:
            row, *both = (torch.from_numpy(a) for a in placed)
            self._sinks = tuple(map(device.put, (row, *(each.to(getattr(torch, spec.dtype)) for each in both))))

    def attend(
        self, batch: StepBatch, q: np.ndarray, k: np.ndarray, v: np.ndarray, shape: StepShape | None = None,
        fused: QKPrologueCase | None = None, planned: bool = True,
    ) -> np.ndarray:  # fmt: skip
        """q, k, v of the batch's tokens (float32) -> [T, heads, D]. With a shape, or on a device that always pads, the batch is
        padded, and the padding tokens' q, k and v are NaN. fused: the backend applies RoPE to q and k. planned: by the host.
        Otherwise the step plans it on the device."""
        tokens = batch.tokens.shape[0]
        if shape is None and self._device.pads:
            shape = roomy(batch)
        batch = replace(batch, parts=(*batch.parts, Heads(q, k, v)))
        if shape is not None:
            batch = batch.pad(shape)
        if planned:
            batch = replace(batch, metadata=(self._backend.metadata(batch, 0, self._spec, shape),))
        key = (shape, fused.prologue if fused else None, planned)
        if key not in self._made:
            step, params = functools.partial(self._step, *key[1:]), self._params(fused)
            self._made[key] = self._device.compile(step, params, self.box, shape, None)
        return np.asarray(self._made[key](batch).result().extras["out"])[:tokens]

    def _params(self, fused: QKPrologueCase | None) -> Any:
        """As in `_step`. A prologue's arrays are those of its first use."""
        if fused is None:
            return self._sinks
        weights = () if fused.prologue.eps is None else fused.weights
        return self._sinks, self._device.put(fused.cos_sin), tuple(map(self._device.put, weights))

    def _step(self, prologue: QKPrologue | None, planned: bool, params: Any, kv: Any, b: StepBatch) -> tuple[Any, StepResult]:
        heads = b.get(Heads)
        assert heads is not None
        if not planned:
            b = replace(b, metadata=(self._backend.plan_on_device(b, 0, self._spec),))
        q, k, v = (a.to(getattr(torch, self._spec.dtype)) for a in (heads.q, heads.k, heads.v))
        if self._spec.placed:
            out, kv = self._backend.attend_placed(q, k, v, kv, b, 0, self._spec, RelativePositions(params[0], 0, *params[1:]))
        elif self._spec.reach:
            out, kv = self._backend.attend_biased(q, k, v, kv, b, 0, self._spec, params)
        elif prologue is None:
            out, kv = self._backend.attend(q, k, v, kv, b, 0, self._spec, params)
        else:
            more, table, weights = params
            out, kv = self._backend.attend_fused(q, k, v, kv, b, 0, self._spec, prologue, table, weights or None, more)
        return kv, StepResult(b.slots[:, None], b.query, extras={"out": out.to(torch.float32)})


def roomy(batch: StepBatch) -> StepShape:
    """One of few shapes, with room for this batch."""
    tokens, seqs, blocks = batch.tokens.shape[0], batch.slots.shape[0], batch.block_tables[0].shape[1]
    power = [1 << n for n in range(4, 31)]
    t, s, b = (next(n for n in sizes if n > x) for x, sizes in ((tokens, power), (seqs, power), (blocks, power[3:])))
    return StepShape(t, s, b)


def rows(
    stories: Sequence[SequenceCase], start: Sequence[int], query: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, k, v of the tokens start..start + query - 1 of each story, as a batch wants them."""
    cut = [slice(c, c + n) for c, n in zip(start, query, strict=True)]
    return (
        np.concatenate([s.q[c] for s, c in zip(stories, cut, strict=True)]),
        np.concatenate([s.k[c] for s, c in zip(stories, cut, strict=True)]),
        np.concatenate([s.v[c] for s, c in zip(stories, cut, strict=True)]),
    )


def poison(cache: Cache, blocks: int, size: int, spec: AttnSpec) -> None:
    """Fill every block but scratch with NaN, as an earlier owner with broken values would have left them. Eight
    owners, as one would attend to thousands of tokens for nothing."""
    owned = [part for part in np.array_split(np.arange(1, blocks, dtype=np.int32), 8) if len(part)]
    table = np.zeros((len(owned), len(owned[0])), np.int32)
    for row, part in zip(table, owned, strict=True):
        row[: len(part)] = part
    each = [len(part) * size for part in owned]
    q, k = (np.full((sum(each), h, spec.head_dim), np.nan, np.float32) for h in (spec.heads, spec.kv_heads))
    cache.attend(batch_of(table, [0] * len(each), each), q, k, k[..., : spec.latent] if spec.kind == "latent" else k)
