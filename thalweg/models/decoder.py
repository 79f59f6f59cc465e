"""Models assembled from their specs: an embedding, layers with a residual stream around them, a norm, a tail.

A family (`families/`) declares a `ModelSpec`; nothing here knows one. What a layer is made of is looked up by the kind of
its declaration: `MIXERS` and `FFNS` are the two lists that a new kind of layer adds a line to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.kv import KVLayout
from thalweg.hal.parts.overlays import Overlays
from thalweg.hal.parts.sounds import Sounds
from thalweg.hal.step import Array, StepBatch, StepShape
from thalweg.models import sizes, spec
from thalweg.models.context import Context
from thalweg.models.flow import Flow, Place
from thalweg.models.heads.classify import Classifier
from thalweg.models.heads.pooling import Pooler
from thalweg.models.layers.attention import Attention
from thalweg.models.layers.cross import CrossAttention
from thalweg.models.layers.delta import GatedDeltaNet
from thalweg.models.layers.embedding import Added, Embedding, LMHead
from thalweg.models.layers.mlp import GatedMLP
from thalweg.models.layers.moe import Experts
from thalweg.models.layers.norm import BoundNorm, bound
from thalweg.models.layers.rotary import cos_sin_table
from thalweg.models.layers.sound import SoundEncoder
from thalweg.models.layers.ungated import UngatedMLP
from thalweg.models.weights import ParamSpec, Weight

MIXERS: Mapping[type, Callable[..., Any]] = {
    spec.Attention: Attention, spec.CrossAttention: CrossAttention, spec.DeltaNet: GatedDeltaNet,
}  # fmt: skip
FFNS: Mapping[type, Callable[..., Any]] = {spec.MLP: GatedMLP, spec.UngatedMLP: UngatedMLP, spec.MoE: Experts}


class Block:
    """One layer. What is to be added to the residual stream, and the stream, in; the same out. No stream: what would be
    added is all of it."""

    def __init__(self, ctx: Context, layer: spec.Layer, weights: Mapping[str, Any], place: Place) -> None:
        self._parallel, self._multiplier = layer.parallel, layer.multiplier
        norms = {k: bound(ctx, getattr(layer.norms, k), w) for k, w in weights["norms"].items()}
        self._enter, self._leave, self._ffn_enter, self._ffn_leave, self._sum, self._ffn_sum = (
            norms.get(k) for k in spec.Norms.KEYS
        )
        self.mixer = MIXERS[type(layer.mixer)](ctx, layer.mixer, weights["mixer"], place)
        self._ffn = None if layer.ffn is None else FFNS[type(layer.ffn)](ctx, layer.ffn, weights["ffn"])
        self.specs = {
            "norms": {k: n.specs for k, n in norms.items()},
            "mixer": self.mixer.specs,
        }
        if self._ffn is not None:
            self.specs["ffn"] = self._ffn.specs

    def __call__(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array | None]:
        norms = p["norms"]
        entered, residual = _entered(self._enter, norms.get("mixer"), x, residual)
        x = self.mixer(p["mixer"], entered, flow)
        if self._leave is not None:
            x = self._leave(norms["mixer_out"], x)
        if self._parallel:
            if self._ffn_enter is not None:
                entered = self._ffn_enter(norms["ffn"], residual)
            x = x + self._last(p, entered, flow)
            return self._scaled(x), residual
        x, stream = self._scaled(x), residual
        if self._sum is not None:
            x, stream = self._sum.add(norms["mixer_sum"], x, residual)[0], None
        if self._ffn is None:
            return x, stream
        entered, residual = _entered(self._ffn_enter, norms.get("ffn"), x, stream)
        x = self._scaled(self._last(p, entered, flow))
        if self._ffn_sum is not None:
            return self._ffn_sum.add(norms["ffn_sum"], x, residual)[0], None
        return x, residual

    def _last(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        assert self._ffn is not None
        x = self._ffn(p["ffn"], x, flow)
        return x if self._ffn_leave is None else self._ffn_leave(p["norms"]["ffn_out"], x)

    def _scaled(self, x: Array) -> Array:
        return x if self._multiplier == 1.0 else x * self._multiplier


def _for(ctx: Context, index: int, layer: spec.Layer) -> Context:
    """What a layer is built with: its cache may hold the model's own type, where others' do not."""
    return replace(ctx, kv_dtype="") if ctx.kv_dtype and sizes.skipped(index, layer, ctx.kv_skip) else ctx


def _entered(norm: BoundNorm | None, p: Any, x: Array, residual: Array | None) -> tuple[Array, Array]:
    """What enters a part of a layer, and the residual stream it is made of."""
    if norm is not None:
        return norm.add(p, x, residual)
    total = x if residual is None else x + residual
    return total, total


class Decoder:
    """A model: what `build` returns. Holds no tensors; parameters and caches are passed."""

    def __init__(self, ctx: Context, s: spec.ModelSpec) -> None:
        self.spec, self.comm, self.max_len, self.formats = s, ctx.comm, ctx.max_len, ctx.formats
        self.vocab, self.hidden = s.vocab, s.hidden
        kinds = sizes.kept(s, ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.comm.size, ctx.kv_skip)
        weights: Mapping[str, Any] = s.weights()
        self.layer_group = tuple(list(dict.fromkeys(kinds)).index(k) for k in kinds)
        """Per layer: its index in `groups`."""
        ropes = s.ropes
        self._embed = Embedding(ctx, s, weights["embed"])
        self.blocks = [
            Block(_for(ctx, i, layer), layer, weights["layers"][i], Place(i, self.layer_group[i], _table(ropes, layer)))
            for i, layer in enumerate(s.layers)
        ]
        self.cache_scales = frozenset(n for b in self.blocks for n in getattr(b.mixer, "cache_scales", ()))
        """Names of tensors of the checkpoint that were read while the model was built: scales of keys and values."""
        self._learned = [Added(ctx, each, s.hidden, weights["learned"][i]) for i, each in enumerate(s.learned)]
        self._embed_norm = None if s.embed_norm is None else bound(ctx, s.embed_norm, weights["embed_norm"])
        self._norm = None if s.norm is None else bound(ctx, s.norm, weights["norm"])
        self._head = LMHead(ctx, s, weights["head"]) if s.pooling is None else None
        self._pooler = None if s.pooling is None else Pooler(ctx, s.pooling, s.hidden)
        self._classes = None
        if s.pooling is not None and s.pooling.classes is not None:
            self._classes = Classifier(ctx, s.pooling.classes, s.hidden, weights["classes"])
        self.specs: dict[str, Any] = {
            "rope": {i: _table_spec(rope, ctx.max_len) for i, rope in enumerate(ropes)},
            "embed": self._embed.specs,
            "layers": {i: b.specs for i, b in enumerate(self.blocks)},
        }
        if self._learned:
            self.specs["learned"] = {i: each.specs for i, each in enumerate(self._learned)}
        self._sound = None if s.sound is None else SoundEncoder(ctx, s.sound, weights["sound"], Block)
        for key, part in self._ends():
            if part is not None:
                self.specs[key] = part.specs
        self.layouts: tuple[KVLayout | tuple[KVLayout, ...], ...] = tuple(b.mixer.layout for b in self.blocks)
        """Per layer; several where its cache is several arrays."""
        self.groups = sizes.kv_groups(kinds, ctx.block_tokens, ctx.state_tokens, [_bytes(each) for each in self.layouts])
        """Layers that keep the same tokens in the same way share a group."""
        first = [self.blocks[g.layers[0]].mixer for g in self.groups]
        self.attention: tuple[tuple[AttentionBackend, AttnSpec] | None, ...] = tuple(
            None if a.backend is None else (a.backend, a.spec) for a in first
        )
        """Per group: the backend that makes StepBatch.metadata, and the spec it makes it for, that of all its layers. None: its
        layers attend to nothing."""

    def rename(self, name: str) -> str | None:
        """A checkpoint's tensor name as the layers know it; None for tensors that hold nothing of their own."""
        return self.spec.known(name)

    def forward(self, params: Any, batch: StepBatch, kv: list[Array]) -> tuple[Array, list[Array]]:
        """The hidden states [T, hidden] after the final norm, and the new caches, one per layer. Token ids are known:
        batch.tokens holds no ON_DEVICE. Where the model tells types of tokens apart, one of type n is its id + n * vocab."""
        flow = Flow(batch, list(kv), params.get("rope", {}))
        sounds = batch.get(Sounds)
        if sounds is not None and self._sound is not None:
            flow.sources = self._sound(params["sound"], sounds.mel)
        x, residual = self.entered(params, batch), None
        for i, block in enumerate(self.blocks):
            x, residual = block(params["layers"][i], x, residual, flow)
        if self._norm is not None:
            x, _ = self._norm.add(params["norm"], x, residual)
        elif residual is not None:
            x = x + residual
        return x, flow.caches

    def entered(self, params: Any, batch: StepBatch) -> Array:
        """What enters the first layer, [T, hidden]."""
        tokens, types = batch.tokens, None
        if self.spec.types > 1:
            types, tokens = torch.div(tokens, self.vocab, rounding_mode="floor"), tokens % self.vocab
        x: Array = self._embed(params["embed"], tokens)
        overlays = batch.get(Overlays)
        if overlays is not None:
            laid = overlays.vector[overlays.pick.clamp(min=0)].to(x.dtype)
            x = torch.where((overlays.pick >= 0).unsqueeze(1), laid, x)
        for i, table in enumerate(self._learned):
            x = x + table(params["learned"][i], batch, types)
        if self._embed_norm is not None:
            x = self._embed_norm(params["embed_norm"], x)
        return x

    def metadata(self, batch: StepBatch, shape: StepShape | None) -> tuple[Mapping[str, Any], ...]:
        """Host work for each group, as `AttentionBackend.metadata` does it: what `batch.metadata` is filled with."""
        return tuple(
            {} if group is None else group[0].metadata(batch, g, group[1], shape) for g, group in enumerate(self.attention)
        )

    def _ends(self) -> Iterator[tuple[str, Any]]:
        """Parts around the layers that some models lack, by the key of their parameters."""
        yield "embed_norm", self._embed_norm
        yield "norm", self._norm
        yield "head", self._head
        yield "classes", self._classes
        yield "sound", self._sound

    @property
    def pools(self) -> bool:
        """Does the model give a vector per sequence, or a number per class, in place of tokens?"""
        return self._pooler is not None

    def pooled(self, params: Any, x: Array, batch: StepBatch) -> Array:
        """x [T, hidden] of `forward` of whole sequences -> f32[S, hidden], or f32[S, classes]. Only where the model `pools`."""
        assert self._pooler is not None
        vectors = self._pooler(x, batch)
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


def _bytes(layout: KVLayout | tuple[KVLayout, ...]) -> int:
    return sum(part.bytes_per_block for part in (layout if isinstance(layout, tuple) else (layout,)))


def _table(ropes: Sequence[spec.Rope], layer: spec.Layer) -> int:
    return -1 if layer.mixer.rope is None else ropes.index(layer.mixer.rope)


def _table_spec(rope: spec.Rope, max_len: int) -> ParamSpec:
    make = partial(cos_sin_table, dict(rope.parameters), rope.dim, rope.trained, max_len)
    return ParamSpec(Weight(()), "float32", make=make)
