"""Models assembled from their specs: an embedding, layers with a residual stream around them, a norm, a tail.

A family (`families/`) declares a `ModelSpec`; nothing here knows one. What a layer is made of is looked up by the kind of
its declaration: `MIXERS`, `FFNS` and `AROUND` are the lists that a new kind of layer adds a line to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.kv import KVLayout
from thalweg.hal.parts.adapters import Adapters
from thalweg.hal.parts.axes import Axes
from thalweg.hal.parts.overlays import Overlays
from thalweg.hal.parts.sounds import Sounds
from thalweg.hal.parts.sparse import Sparse
from thalweg.hal.step import Array, StepBatch, StepShape
from thalweg.models import sizes, spec
from thalweg.models.adapters import Held, slots_of
from thalweg.models.context import Context
from thalweg.models.flow import Flow, Place
from thalweg.models.heads.classify import Classifier
from thalweg.models.heads.dense import DenseModules
from thalweg.models.heads.lexical import WordWeights
from thalweg.models.heads.pooling import Pooler
from thalweg.models.layers.altup import AltUp, Laurel, Streams
from thalweg.models.layers.attention import Attention
from thalweg.models.layers.beside import MLPBesideExperts
from thalweg.models.layers.cross import CrossAttention
from thalweg.models.layers.delta import GatedDeltaNet
from thalweg.models.layers.disentangled import DisentangledAttention, Distances
from thalweg.models.layers.embedding import Added, Embedding, LMHead
from thalweg.models.layers.kda import KimiDeltaAttention
from thalweg.models.layers.latent import LatentAttention
from thalweg.models.layers.lightning import LightningAttention
from thalweg.models.layers.mamba import Mamba
from thalweg.models.layers.mamba2 import Mamba2
from thalweg.models.layers.mlp import GatedMLP
from thalweg.models.layers.moe import Experts
from thalweg.models.layers.norm import BoundNorm, bound
from thalweg.models.layers.perlayer import Ended, LayerInputs
from thalweg.models.layers.rotary import cos_sin_table
from thalweg.models.layers.short_conv import ShortConv
from thalweg.models.layers.shortcut import MLPAndShortcut
from thalweg.models.layers.sound import SoundEncoder
from thalweg.models.layers.sparse import SparseGatedMLP
from thalweg.models.layers.ungated import UngatedMLP
from thalweg.models.layers.xielu import XieluMLP
from thalweg.models.vision.ear import Ear
from thalweg.models.vision.tower import Tower
from thalweg.models.weights import ParamSpec, Weight

MIXERS: Mapping[type, Callable[..., Any]] = {
    spec.Attention: Attention,
    spec.CrossAttention: CrossAttention,
    spec.DeltaNet: GatedDeltaNet,
    spec.DisentangledAttention: DisentangledAttention,
    spec.KimiDelta: KimiDeltaAttention,
    spec.LatentAttention: LatentAttention,
    spec.LightningAttention: LightningAttention,
    spec.Mamba: Mamba,
    spec.Mamba2: Mamba2,
    spec.ShortConv: ShortConv,
}
FFNS: Mapping[type, Callable[..., Any]] = {
    spec.MLP: GatedMLP,
    spec.UngatedMLP: UngatedMLP,
    spec.MoE: Experts,
    spec.XieluMLP: XieluMLP,
    spec.SparseMLP: SparseGatedMLP,
    spec.Beside: MLPBesideExperts,
    spec.Shortcut: MLPAndShortcut,
}
AROUND: Mapping[type, Callable[..., Any]] = {spec.Ending: Ended, spec.AltUp: AltUp}


class Block:
    """One layer. What is to be added to the residual stream, and the stream, in; the same out. No stream: what would be
    added is all of it."""

    def __init__(self, ctx: Context, layer: spec.Layer, weights: Mapping[str, Any], places: Sequence[Place]) -> None:
        """places: of its mixers."""
        self._parallel, self._multiplier, self.places = layer.parallel, layer.multiplier, places
        norms = {k: bound(ctx, getattr(layer.norms, k), w) for k, w in weights["norms"].items()}
        self._enter, self._leave, self._ffn_enter, self._ffn_leave, self._sum, self._ffn_sum = (
            norms.get(k) for k in spec.Norms.KEYS
        )
        self._several = isinstance(layer.mixer, tuple)
        parts = weights["mixer"].values() if self._several else [weights["mixer"]] if layer.mixers else []
        self.mixers = [
            MIXERS[type(mixer)](_for(ctx, at.of, mixer), mixer, w, at)
            for mixer, w, at in zip(layer.mixers, parts, places, strict=True)
        ]
        self._mixer_scales, self._ffn_scale = layer.mixer_scales or ((1.0, 1.0),) * len(self.mixers), layer.ffn_scale
        self._ffn = None if layer.ffn is None else FFNS[type(layer.ffn)](ctx, layer.ffn, weights["ffn"])
        self.specs: dict[str, Any] = {"norms": {k: n.specs for k, n in norms.items()}}
        if self.mixers:
            each = {i: mixer.specs for i, mixer in enumerate(self.mixers)}
            self.specs["mixer"] = each if self._several else each[0]
        if self._ffn is not None:
            self.specs["ffn"] = self._ffn.specs
        self._laurel = Laurel(ctx, layer.laurel, weights["laurel"]) if layer.laurel else None
        if self._laurel is not None:
            self.specs["laurel"] = self._laurel.specs

    def __call__(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array | None]:
        norms = p.get("norms", {})  # of norms without weights nothing is loaded
        if not self.mixers:
            return self._only(p, x, residual, flow)
        entered, residual = _entered(self._enter, norms.get("mixer"), x, residual)
        x, entered, residual = self._mixed(p["mixer"], entered, flow), flow.cut(entered), flow.cut(residual)
        flow.slots = None if flow.slots is None else flow.cut(flow.slots)
        if self._leave is not None:
            x = self._leave(norms.get("mixer_out"), x)
        if self._parallel:
            if self._ffn_enter is not None:
                entered = self._ffn_enter(norms.get("ffn"), residual)
            x = x + self._last(p, entered, flow)
            return self._scaled(x), residual
        x, stream = self._scaled(x), residual
        if self._laurel is not None:
            x, stream = (x + residual + self._laurel(p["laurel"], entered)) * 0.5**0.5, None
        if self._sum is not None:
            x, stream = self._sum.add(norms.get("mixer_sum"), x, residual)[0], None
        return (x, stream) if self._ffn is None else self._only(p, x, stream, flow)

    def _only(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array | None]:
        """The feed-forward part, of what the layer has before it."""
        entered, residual = _entered(self._ffn_enter, p.get("norms", {}).get("ffn"), x, residual)
        x = self._scaled(self._last(p, entered, flow))
        if self._ffn_sum is not None:
            return self._ffn_sum.add(p.get("norms", {}).get("ffn_sum"), x, residual)[0], None
        return x, residual

    def _mixed(self, p: Mapping[Any, Any], x: Array, flow: Flow) -> Array:
        """The sum of what the mixers give, of the rows that are read."""
        parts = []
        for i, (mixer, (before, after)) in enumerate(zip(self.mixers, self._mixer_scales, strict=True)):
            out = mixer(p[i] if self._several else p, _times(x, before), flow)
            parts.append(_times(out if getattr(mixer, "cuts", False) else flow.cut(out), after))
        return sum(parts[1:], parts[0])

    def _last(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        assert self._ffn is not None
        x = _times(self._ffn(p["ffn"], x, flow), self._ffn_scale)
        return x if self._ffn_leave is None else self._ffn_leave(p.get("norms", {}).get("ffn_out"), x)

    def _scaled(self, x: Array) -> Array:
        return _times(x, self._multiplier)


def _layer(ctx: Context, layer: spec.Layer, weights: Mapping[str, Any], places: Sequence[Place]) -> Any:
    """A block, in what it is wrapped in."""
    block = Block(ctx, layer, weights, places)
    if layer.around is None:
        return block
    return AROUND[type(layer.around)](ctx, layer.around, block, weights["around"], places[0].of)


def _times(x: Array, by: float) -> Array:
    return x if by == 1.0 else x * by


def _for(ctx: Context, layer: int, mixer: spec.Mixer) -> Context:
    """What a mixer is built with: its cache may hold the model's own type, where others' do not."""
    reads = getattr(mixer, "reads", None)
    skipped = ctx.kv_dtype and sizes.skipped(layer if reads is None else reads, mixer, ctx.kv_skip)
    return replace(ctx, kv_dtype="") if skipped else ctx


def _entered(norm: BoundNorm | None, p: Any, x: Array, residual: Array | None) -> tuple[Array, Array]:
    """What enters a part of a layer, and the residual stream it is made of."""
    if norm is not None:
        return norm.add(p, x, residual)
    total = x if residual is None else x + residual
    return total, total


class Decoder:
    """A model: what `build` returns. Holds no tensors; parameters and caches are passed."""

    reader = None
    """What reads its parameters from files, where that is not `models.files.Files`."""

    def __init__(self, ctx: Context, s: spec.ModelSpec) -> None:
        self.spec, self.comm, self.max_len, self.formats = s, ctx.comm, ctx.max_len, ctx.formats
        self.vocab, self.hidden, self.dtype, self.adapters = s.vocab, s.hidden, ctx.dtype, ctx.adapters
        kinds = sizes.kept(s, ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.comm.size, ctx.kv_skip)
        weights: Mapping[str, Any] = s.weights()
        owners, kept = sizes.owners(s), list(dict.fromkeys(k for k in kinds if k is not None))
        self.layer_group = tuple(kept.index(kinds[owner]) for owner in owners)  # type: ignore[arg-type]
        """Per mixer: the index in `groups` of the cache it attends to."""
        ropes, read = s.ropes, {owner for i, owner in enumerate(owners) if owner != i}
        self._embed = Embedding(ctx, s, weights["embed"])
        places = [
            Place(owners[i], self.layer_group[i], _table(ropes, mixer), of, i in read) for i, (of, mixer) in enumerate(s.mixers)
        ]
        self.blocks = [
            _layer(ctx, layer, weights["layers"][i], [place for place in places if place.of == i])
            for i, layer in enumerate(s.layers)
        ]
        self._mixes_last = sizes.mixes_last(s.layers)
        mixers = [mixer for block in self.blocks for mixer in block.mixers]
        self.cache_scales = frozenset(n for mixer in mixers for n in getattr(mixer, "cache_scales", ()))
        """Names of tensors of the checkpoint that were read while the model was built: scales of keys and values."""
        self._learned = [Added(ctx, each, s.hidden, weights["learned"][i]) for i, each in enumerate(s.learned)]
        self._inputs = None if s.inputs is None else LayerInputs(ctx, s.inputs, weights["inputs"])
        self._streams = None if s.streams is None else Streams(ctx, s.streams, weights["streams"])
        self._distances = None if s.distances is None else Distances(ctx, s.distances, weights["distances"])
        self._embed_norm = None if s.embed_norm is None else bound(ctx, s.embed_norm, weights["embed_norm"])
        self._norm = None if s.norm is None else bound(ctx, s.norm, weights["norm"])
        self._head = LMHead(ctx, s, weights["head"]) if s.pooling is None else None
        self._pooler = None if s.pooling is None else Pooler(ctx, s.pooling, s.hidden)
        self._classes = None
        if s.pooling is not None and s.pooling.classes is not None:
            self._classes = Classifier(ctx, s.pooling.classes, s.hidden, weights["classes"])
        self._dense = (
            DenseModules(ctx, s.pooling.dense, weights["dense"]) if s.pooling is not None and s.pooling.dense else None
        )
        lexical = None if s.pooling is None else s.pooling.lexical
        self._lexical = None if lexical is None else WordWeights(ctx, lexical, s.hidden, weights["lexical"])
        self.vision = None if s.vision is None else Tower(ctx, s.vision, weights["vision"], Block)
        """Its step is another executable, over the parameters under this key."""
        self.hearing = None if s.hearing is None else Ear(ctx, s.hearing, weights["hearing"], Block)
        self.specs: dict[str, Any] = {
            "rope": {i: _table_spec(rope, ctx.max_len) for i, rope in enumerate(ropes)},
            "embed": self._embed.specs,
            "layers": {i: b.specs for i, b in enumerate(self.blocks)},
        }
        if any(rope.sections for rope in ropes):
            self.specs["axes"] = {i: _axes_spec(rope) for i, rope in enumerate(ropes)}
        if self._learned:
            self.specs["learned"] = {i: each.specs for i, each in enumerate(self._learned)}
        self._sound = None if s.sound is None else SoundEncoder(replace(ctx, adapters=None), s.sound, weights["sound"], Block)
        for key, part in self._ends():
            if part is not None:
                self.specs[key] = part.specs
        self.layouts: tuple[KVLayout | tuple[KVLayout, ...], ...] = tuple(mixer.layout for mixer in mixers)
        """Per mixer; several where its cache is several arrays, and none where it reads another's."""
        self.groups = sizes.kv_groups(kinds, ctx.block_tokens, ctx.state_tokens, [_bytes(each) for each in self.layouts])
        """Mixers that keep the same tokens in the same way share a group."""
        first = [mixers[g.layers[0]] for g in self.groups]
        self.attention: tuple[tuple[AttentionBackend, AttnSpec] | None, ...] = tuple(
            None if a.backend is None else (a.backend, a.spec) for a in first
        )
        """Per group: the backend that makes StepBatch.metadata, and the spec it makes it for, that of all its mixers. None: its
        mixers attend to nothing."""

    @property
    def looks_ahead(self) -> bool:
        """Can its images see themselves whole, where the model means them to?"""
        return all(b.mixers[0].spec.spans for layer, b in zip(self.spec.layers, self.blocks, strict=True) if _spans(layer))

    def rename(self, name: str) -> str | None:
        """A checkpoint's tensor name as the layers know it; None for tensors that hold nothing of their own."""
        return self.spec.known(name)

    def forward(
        self, params: Any, batch: StepBatch, kv: list[Array], rows: Array | None = None, adapters: Held | None = None
    ) -> tuple[Array, list[Array]]:
        """The hidden states [T, hidden] after the final norm, and the new caches, one per mixer. Token ids are known:
        batch.tokens holds no ON_DEVICE. Where the model tells types of tokens apart, one of type n is its id + n * vocab.

        rows i32[R]: those that are read, [R, hidden]. What follows the last mixer of tokens is computed of no others.
        adapters: those in the state, where the model is built with some."""
        x, flow = self.begun(params, batch, kv, params.get("rope", {}))
        if adapters:
            flow.slots, flow.adapters = slots_of(batch.get(Adapters), batch.token_seq), adapters
        sounds = batch.get(Sounds)
        if sounds is not None and self._sound is not None:
            flow.sources = self._sound(params["sound"], sounds.mel)
        residual, laid = None, flow.laid
        late = rows is not None and laid is not None and laid.shape[1] // self.hidden > len(self.blocks)
        cut = -1 if rows is None or late else self._mixes_last
        for i, block in enumerate(self.blocks):
            if i == cut:  # no layer behind it looks at either
                flow.read, flow.batch = rows, replace(batch, last_alone=rows is batch.last_row)
            x, residual = block(params["layers"][i], x, residual, flow)
            if laid is not None and i + 1 < laid.shape[1] // self.hidden:
                x = x + laid[:, (i + 1) * self.hidden : (i + 2) * self.hidden].to(x.dtype)
        if self._streams is not None:
            x = self._streams.leave(params["streams"], x)
        if self._norm is not None:
            x, _ = self._norm.add(params.get("norm"), x, residual)
        elif residual is not None:
            x = x + residual
        return x if rows is None or cut >= 0 else x.index_select(0, rows), flow.caches

    def begun(self, params: Any, batch: StepBatch, kv: Sequence[Array], tables: Mapping[int, Any]) -> tuple[Array, Flow]:
        """What enters the first layer, [T, hidden] or all streams [T, n, hidden], and what flows beside it. tables: as Flow
        has them."""
        laid = _laid(batch)
        x, inputs = self._embedded(params, batch, laid), None
        if self._inputs is not None:
            assert self.spec.inputs is not None
            tokens, overlays = batch.tokens, batch.get(Overlays)
            if overlays is not None:
                tokens = torch.where(overlays.pick >= 0, self.spec.inputs.pad, tokens)
            inputs = self._inputs(params["inputs"], tokens, x)
        if self._streams is not None:
            x = self._streams.enter(params["streams"], x)
        flow = Flow(batch, list(kv), tables, inputs, laid=laid)
        if self._distances is not None:
            flow.distances = self._distances(params["distances"])
        self._along_axes(params, flow)
        return x, flow

    def _along_axes(self, params: Any, flow: Flow) -> None:
        """Where positions have several axes, each token has a row of its own in the rotary tables."""
        batch, axes = flow.batch, flow.batch.get(Axes)
        if axes is None or "axes" not in params:
            return
        where = (batch.positions.unsqueeze(1) + axes.shift).clamp(0, self.max_len - 1).long()
        flow.rows = (torch.ones_like(batch.positions).cumsum(0) - 1).to(torch.int32)
        flow.tables = {
            i: table[where].gather(1, params["axes"][i].expand(len(where), 1, -1)).squeeze(1)
            for i, table in flow.tables.items()
        }

    def _embedded(self, params: Any, batch: StepBatch, laid: Array | None) -> Array:
        """[T, hidden]. laid: as `_laid` gives it."""
        tokens, types = batch.tokens, None
        if self.spec.types > 1:
            types, tokens = torch.div(tokens, self.vocab, rounding_mode="floor"), tokens % self.vocab
        x: Array = self._embed(params["embed"], tokens)
        overlays = batch.get(Overlays)
        if overlays is not None and laid is not None:
            x = torch.where((overlays.pick >= 0).unsqueeze(1), laid[:, : self.hidden].to(x.dtype), x)
        for i, table in enumerate(self._learned):
            x = x + table(params["learned"][i], batch, types)
        if self._embed_norm is not None:
            x = self._embed_norm(params["embed_norm"], x)
        return x

    def metadata(self, batch: StepBatch, shape: StepShape | None) -> tuple[Mapping[str, Any], ...]:
        """Host work for each group, as `AttentionBackend.metadata` does it: what `batch.metadata` is filled with. ValueError:
        the step lacks a part that the model cannot do without."""
        top = max(g.top for g in self.groups)
        if top and batch.get(Sparse) is None and (batch.context + batch.query > top).any():
            raise ValueError(f"StepBatch.parts: tokens see more than the {top} that they read, and Sparse is missing")
        return tuple(
            {} if group is None else group[0].metadata(batch, g, group[1], shape) for g, group in enumerate(self.attention)
        )

    def _ends(self) -> Iterator[tuple[str, Any]]:
        """Parts around the layers that some models lack, by the key of their parameters."""
        yield "distances", self._distances
        yield "inputs", self._inputs
        yield "streams", self._streams
        yield "embed_norm", self._embed_norm
        yield "norm", self._norm
        yield "head", self._head
        yield "classes", self._classes
        yield "dense", self._dense
        yield "lexical", self._lexical
        yield "vision", self.vision
        yield "hearing", self.hearing
        yield "sound", self._sound

    @property
    def pools(self) -> bool:
        """Does the model give a vector per sequence, or a number per class, in place of tokens?"""
        return self._pooler is not None

    def pooled_rows(self, batch: StepBatch) -> Array | None:
        """i32[S]: the rows that `pooled` reads. None: all."""
        assert self._pooler is not None
        return None if self._lexical is not None else self._pooler.rows(batch)

    def pooled(self, params: Any, x: Array, batch: StepBatch) -> Array:
        """x of `forward` of whole sequences, the `pooled_rows` [S, hidden] or all [T, hidden] -> f32[S, n], a vector or
        classes. Only where the model `pools`."""
        assert self._pooler is not None
        if self._lexical is not None:
            return self._lexical.pooled(params["lexical"], x, batch)
        return self._tail(params, self._pooler(x, batch))

    def each(self, params: Any, x: Array, row: Array) -> Array:
        """The same of single tokens, those in these rows i32[N] of x: f32[N, n]."""
        x = x.index_select(0, row)
        return self._tail(params, x.to(torch.float32)) if self._lexical is None else self._lexical(params["lexical"], x)

    def _tail(self, params: Any, vectors: Array) -> Array:
        if self._dense is not None:
            vectors = self._dense(params["dense"], vectors)
        return vectors if self._classes is None else self._classes(params["classes"], vectors)

    def logits(self, params: Any, x: Array) -> Array:
        """x [N, hidden] of `forward` -> f32[N, vocab]."""
        assert self._head is not None
        return self._head(params["head"], x)

    @property
    def has_argmax(self) -> bool:
        """Can the output matrix give the argmax without the logits?"""
        return self._head is not None and self._head.has_argmax

    def argmax(self, params: Any, x: Array) -> tuple[Array, Array]:
        """x [N, hidden] of `forward` -> (tokens i32[N] of the largest logits, these f32[N]): what `logits` would give, but
        faster. Only where the model `has_argmax`."""
        assert self._head is not None
        return self._head.argmax(params["head"], x)


def _laid(batch: StepBatch) -> Array | None:
    """The vector of each token that has one, f32[T, hidden * n], zeros for others; None if no token has. Beyond the first
    `hidden` values there are those that are added to what the first layers give."""
    overlays = batch.get(Overlays)
    if overlays is None:
        return None
    return overlays.vector[overlays.pick.clamp(min=0)] * (overlays.pick >= 0).unsqueeze(1)


def _spans(layer: spec.Layer) -> bool:
    return isinstance(layer.mixer, spec.Attention) and layer.mixer.spans


def _bytes(layout: KVLayout | tuple[KVLayout, ...]) -> int:
    return sum(part.bytes_per_block for part in (layout if isinstance(layout, tuple) else (layout,)))


def _table(ropes: Sequence[spec.Rope], mixer: spec.Mixer) -> int:
    return -1 if mixer.rope is None else ropes.index(mixer.rope)


def _axes_spec(rope: spec.Rope) -> ParamSpec:
    """i64[1, 1, rotary_dim]: the axis by which each column of the table is read."""
    axes = rope.axes or (0,) * (rope.dim // 2)
    return ParamSpec(Weight(()), "int64", make=partial(torch.tensor, [[[*axes, *axes]]]))


def _table_spec(rope: spec.Rope, max_len: int) -> ParamSpec:
    make = partial(cos_sin_table, dict(rope.parameters), rope.dim, rope.trained, max_len)
    return ParamSpec(Weight(()), "float32", make=make)
