"""Attention backends: how keys and values are laid out, written and attended to. Chosen per layer kind, at build."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.hal.kv import KVKind, KVLayout
from thalweg.hal.op import NOT_INVARIANT
from thalweg.hal.step import SCRATCH, Array, StepBatch, StepShape


@dataclass(frozen=True, slots=True)
class AttnSpec:
    """Everything static about one attention layer, on one rank."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    dtype: str
    kind: KVKind = "full"
    """"encoder": a token sees every token of its sequence, all of which are in the step. Nothing is kept: blocks of such a
    layer have no bytes, and kv is given back as it came."""
    window: int = 0
    """kind "window": a token sees itself and the window - 1 tokens before it. Kind "encoder": and as many after it. 0 = all.
    Kind "chunked": a token at position p sees those from p // window * window up to itself."""
    softcap: float = 0.0
    """0 = off. Otherwise scores become softcap * tanh(scores / softcap)."""
    kv_dtype: str = ""
    """Type of the cache's values. "" = the same as dtype. "float8_e4m3fn", "float8_e5m2": values are clamped to the type's
    largest and rounded, with no scale. "int8": codes of `hal.ops.quantise.quantise_rows` per token and head, with a float32
    scale each in the same block."""
    sinks: bool = False
    """One learned logit per head joins the denominator of the softmax: weights are exp(s_i) / (sum_j exp(s_j) + exp(sink))."""
    spans: bool = False
    """Steps may have `Spans`: tokens that see some of those behind them, of the same step, which their window does not hide."""
    latent: int = 0
    """kind "latent" (MLA): there is one KV head, and the first `latent` elements of a key are its value. Only keys
    are kept, v is ignored, and out is [T, heads, latent]. The caller applies the up-projection of keys, in q and
    after out."""
    reach: int = 0
    """Kinds "encoder" and "full": something is added to scores by the distance of two tokens (`attend_biased`). Tokens further
    apart than this count as this far. 0 = nothing is."""
    placed: bool = False
    """The term added to a score depends on the query and the key too (`attend_placed`). Such a spec has a `reach`."""
    index: int = 0
    """Kinds "latent" and "full": values of one more key per token, by which the layer selects the tokens to read
    (`ops.index_top`, `ops.block_top`). They have a separate array in the same blocks. Backends do not use it."""
    top: int = 0
    """The same kinds: the most tokens that one token reads. Where one sees more, the layer itself attends to them, over
    `AttentionBackend.keys`, or in kind "full" over `AttentionBackend.pages`. 0 = all."""


@dataclass(frozen=True, slots=True)
class RelativePositions:
    """Distances between tokens, as keys that queries meet and as queries that keys meet (He et al. 2020,
    https://arxiv.org/abs/2006.03654)."""

    row: Array
    """i64[2 * reach + 1]: the row of a table for a key that comes d tokens after its query, at reach + d."""
    first: int = 0
    """Which row of the table is the first below."""
    keys: Array | None = None
    """[rows, kv_heads, head_dim]"""
    queries: Array | None = None
    """[rows, kv_heads, head_dim]"""


@dataclass(frozen=True, slots=True)
class QKPrologue:
    """Static facts of the work on q and k before attention: `ops.rms_norm` of every head, if any, then `ops.rope`."""

    rotary_dim: int
    interleaved: bool = False
    eps: float | None = None
    """eps of the norms of q and k. None = no norms."""
    offset: float = 0.0
    """Offset of the same norms, as in `ops.rms_norm`."""


NOT_FUSED = "takes q and k already normed and rotated"
"""Answer of a backend that does not offer `attend_fused`."""


class AttentionBackend(ABC):
    """Stateless. One instance serves every layer with a supported spec."""

    name: str
    batch_invariant: bool = False
    spans: bool = False
    """Does it heed `Spans`?"""
    biased: bool = False
    """Does it support a `reach` in kind "full"?"""
    by_token: bool = False
    """Does it support `pages`?"""
    mixed: bool = False
    """May a step with different numbers of new tokens per sequence be captured? Then the sizes of `metadata` depend only on the
    bucket, and `attend` reads no value on the host."""
    drafts_only: bool = False
    """Is it for layers of drafters only? A model is rather served without what it offers, as it is slow."""
    known_as: tuple[str, ...] = ()
    """Other engines' names for such a backend, accepted as well as `name`."""

    @abstractmethod
    def supports(self, spec: AttnSpec) -> str | None:
        """None, or why not."""

    def refuses_blocks(self, block_tokens: int) -> str | None:
        """None, or the reason why blocks of so many tokens are not supported. Default: any size is."""
        return None

    @abstractmethod
    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        """How one block of one layer lies in memory."""

    def metadata(self, batch: StepBatch, group: int, spec: AttnSpec, shape: StepShape | None) -> Mapping[str, Any]:
        """Host work for one KV group, before launch and outside the captured step: index arrays derived from the (host) batch.
        With a shape, their sizes depend only on it. spec: that of the group's layers. The result reaches `attend` as
        `batch.metadata[group]`, as device arrays. Default: nothing."""
        return {}

    def plan_on_device(self, batch: StepBatch, group: int, spec: AttnSpec) -> dict[str, Any]:
        """`metadata` of a batch whose positions and counts only the device knows, as in passes of a drafter after accepted
        tokens. Called in the step, so it reads no value on the host. Sizes depend only on those of the arrays and on
        `uniform`. Layers of a group share the result. Default: nothing, for a backend without `metadata`. Others are not
        chosen for such passes (`plans_on_device`)."""
        return {}

    @abstractmethod
    def attend(
        self, q: Array, k: Array, v: Array, kv: Array, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Array | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        """In the step: store k and v of the batch's tokens, then attend.

        q [T, heads, head_dim], k and v [T, kv_heads, head_dim], kv = this layer's cache, from alloc_kv.
        sinks [heads] where the spec has them, in the units of scores after scale and softcap.
        batch holds device arrays. group = which of its block_tables and metadata is this layer's.
        Returns (out [T, heads, head_dim], kv). The caller uses the returned kv, which may be the same memory."""

    def keys(self, kv: Array, spec: AttnSpec) -> Array:
        """kind "latent", in a cache of the model's own type: a view of its keys, [blocks, block_tokens, head_dim]. Default: for
        layouts with a token's values contiguous, and tokens in order."""
        return kv.reshape(kv.shape[0], -1, spec.head_dim)

    def pages(self, kv: Array, spec: AttnSpec) -> tuple[Array, Array]:
        """kind "full", in a cache of the model's own type, of a `by_token` backend: views of its keys and values,
        [blocks, block_tokens, kv_heads, head_dim] each. Default: for layouts that have them in this order."""
        return kv[:, 0], kv[:, 1]

    def fuses(self, spec: AttnSpec, prologue: QKPrologue) -> str | None:
        """May `attend_fused` be called for this (supported) spec? None, or why not. Default: it may not.

        `Binder.offer` cannot bind the composition it stands for (ops.rms_norm, ops.rope, `attend`). That composition
        reads and writes the cache in this backend's own layout, and is chosen with the backend."""
        return NOT_FUSED

    def attend_fused(
        self, q: Array, k: Array, v: Array, kv: Array, batch: StepBatch, group: int, spec: AttnSpec, prologue: QKPrologue,
        cos_sin: Array, weights: tuple[Array, Array] | None = None, sinks: Array | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        """`attend` of q and k as they leave their projections. Applies `prologue`, with the rounding of the ops.

        cos_sin: as in `ops.rope`, read at batch.positions. weights: of the norms of q and of k, [head_dim]
        each, where `prologue` has them. The rest is as in `attend`. One cache may be written and read by both."""
        raise NotImplementedError(f"{self.name}: attend_fused")

    def attend_biased(
        self, q: Array, k: Array, v: Array, kv: Array, batch: StepBatch, group: int, spec: AttnSpec, bias: Array
    ) -> tuple[Array, Array]:
        """`attend` for a (supported) spec with a `reach`. bias f32[heads, 2 * reach + 1]: added to the scores, after scale, of
        a key that comes d tokens after its query: column reach + d, or the nearest."""
        raise NotImplementedError(f"{self.name}: attend_biased")

    def attend_placed(
        self, q: Array, k: Array, v: Array, kv: Array, batch: StepBatch, group: int, spec: AttnSpec, places: RelativePositions
    ) -> tuple[Array, Array]:
        """`attend` for a (supported) spec with `placed`, where every head has its own key. With c the row for the distance from
        query i to key j, its score is scale * (q_i . k_j + q_i . places.keys[c] + places.queries[c] . k_j)."""
        raise NotImplementedError(f"{self.name}: attend_placed")


def choose_attention(
    backends: Sequence[AttentionBackend], spec: AttnSpec, *, batch_invariant: bool = False, block_tokens: int = 0
) -> tuple[AttentionBackend, tuple[tuple[str, str], ...]]:
    """The first backend that supports the spec, and why the ones before it do not. ValueError if none does.
    block_tokens: size of the cache's blocks, 0 = any."""
    refused: list[tuple[str, str]] = []
    for b in backends:
        if batch_invariant and not b.batch_invariant:  # before it is asked anything: that may load a library
            why: str | None = NOT_INVARIANT
        elif spec.spans and not b.spans:
            why = "no token sees those behind it"
        elif spec.reach and spec.kind != "encoder" and not b.biased:
            why = "adds nothing to scores by distance"
        elif spec.top and spec.kind == "full" and not b.by_token:
            why = "keeps keys in an order that only its own kernels read"
        else:
            why = b.supports(spec) or (b.refuses_blocks(block_tokens) if block_tokens else None)
        if why is None:
            return b, tuple(refused)
        refused.append((b.name, why))
    whole = "this device cannot run encoders, of text as of images: " if spec.kind == "encoder" else ""
    why = "; ".join(f"{n}: {w}" for n, w in refused)
    raise ValueError(f"{whole}no attention backend of this device supports {spec}: {why}")


def plans_on_device(backend: AttentionBackend) -> bool:
    """Can it run passes with positions that only the device knows?"""
    kind = type(backend)
    planned = kind.metadata is not AttentionBackend.metadata
    return not planned or kind.plan_on_device is not AttentionBackend.plan_on_device


def named_attention(backends: Sequence[AttentionBackend], name: str) -> list[AttentionBackend]:
    """Those of a name of ours, of its part before a dash, or of the field's name for them. ValueError if there are none."""
    spelling = name.lower().replace("_", "-")
    found = [b for b in backends if name.upper() in b.known_as or b.name == spelling or b.name.startswith(f"{spelling}-")]
    if not found:
        there = dict.fromkeys(n for b in backends for n in (b.name, *b.known_as))
        raise ValueError(f"{name!r:.60} is not available on this device; supported: {', '.join(there)}")
    return found


def whole_sequences(batch: StepBatch) -> list[slice]:
    """For kind "encoder": the rows of each live sequence of a batch with readable arrays. ValueError if a sequence began in an
    earlier step, because its earlier rows were not kept."""
    query, context, last = batch.query.tolist(), batch.context.tolist(), batch.last_row.tolist()
    live = [s for s, slot in enumerate(batch.slots.tolist()) if slot != SCRATCH and query[s]]
    if any(context[s] for s in live):
        raise ValueError("encoder attention needs whole sequences in a step, and some began in an earlier one")
    return [slice(last[s] + 1 - query[s], last[s] + 1) for s in live]
