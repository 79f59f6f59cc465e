"""Models assembled from their specs: an embedding, layers with a residual stream around them, a norm, a tail.

A family (`families/`) declares a `ModelSpec`. Nothing here knows one. Layers are made in `block`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.kv import KVLayout, StateSpec
from thalweg.hal.parts.adapters import Adapters
from thalweg.hal.parts.axes import Axes
from thalweg.hal.parts.overlays import Overlays
from thalweg.hal.parts.sources import Sources
from thalweg.hal.parts.sparse import Sparse
from thalweg.hal.step import Array, StepBatch, StepShape
from thalweg.models import sizes, spec
from thalweg.models.adapters import EXTENDED, AdapterRows, AdapterRowsBuilder, Held, SequenceSlots
from thalweg.models.block import Block, build_layer
from thalweg.models.context import Context
from thalweg.models.drafts.taps import EMBEDDED, FINAL
from thalweg.models.flow import AxisTables, Flow, MixerRef
from thalweg.models.heads.classify import Classifier
from thalweg.models.heads.dense import DenseModules, Projection
from thalweg.models.heads.lexical import WordWeights
from thalweg.models.heads.pooling import Pooler
from thalweg.models.layers.altup import Streams
from thalweg.models.layers.conformer_source import ConformerSource
from thalweg.models.layers.depth import DepthDecoder, PositionEmbedder, TextEmbedder
from thalweg.models.layers.disentangled import Distances
from thalweg.models.layers.embedding import AddedEmbedding, Embedding, LMHead
from thalweg.models.layers.frame_source import FrameSource
from thalweg.models.layers.gated_source import GatedSource
from thalweg.models.layers.gated_streams import GatedStreams
from thalweg.models.layers.hyper import HyperStreams
from thalweg.models.layers.memory import MemoryStreams
from thalweg.models.layers.norm import build_norm
from thalweg.models.layers.perlayer import LayerInputs
from thalweg.models.layers.pooled_source import PooledSource
from thalweg.models.layers.recurrent import Replay
from thalweg.models.layers.residual_blocks import ResidualBlocks
from thalweg.models.layers.rotary import ScaledFrequencies, cos_sin_table
from thalweg.models.layers.speech import SpeechEncoder
from thalweg.models.layers.text_encoder import TextEncoder
from thalweg.models.layers.wav2vec_source import Wav2VecSource
from thalweg.models.layers.waveform import WaveformEncoder
from thalweg.models.stages import names_elsewhere, parts_before, parts_behind
from thalweg.models.vision.audio_encoder import AudioEncoder
from thalweg.models.vision.block_transcriber import BlockTranscriber
from thalweg.models.vision.causal_audio import CausalAudioEncoder
from thalweg.models.vision.conformer import Conformer
from thalweg.models.vision.conformer_transcriber import ConformerTranscriber
from thalweg.models.vision.disentangled_clip import DisentangledClipEncoder
from thalweg.models.vision.fastconformer import FastConformer
from thalweg.models.vision.masked import MaskedEncoder
from thalweg.models.vision.memory_encoder import MemoryEncoder
from thalweg.models.vision.mimi_encoder import MimiEncoder
from thalweg.models.vision.patch_embedding import PatchEmbedding
from thalweg.models.vision.patch_source import PatchEncoder
from thalweg.models.vision.sam import SamEncoder
from thalweg.models.vision.sam_pair import SamPairEncoder
from thalweg.models.vision.swin_source import SwinEncoder
from thalweg.models.vision.tile_source import TileEncoder
from thalweg.models.vision.tower import VisionEncoder
from thalweg.models.vision.vq_encoder import VqEncoder
from thalweg.models.vision.wav2vec import Wav2VecEncoder
from thalweg.models.vision.window_conformer import WindowConformer
from thalweg.models.voices.code2wav import Code2WavNetwork
from thalweg.models.voices.mimi import MimiNetwork
from thalweg.models.voices.vits import VitsNetwork
from thalweg.models.weights import ParamSpec, Weight


@dataclass(frozen=True, slots=True)
class _End:
    """A part around the layers that some models lack.

    key: of its parameters. find: its declaration, None where the model lacks it. build: from (context, model, declaration,
    weights under the key)."""

    key: str
    find: Callable[[spec.ModelSpec], Any]
    build: Callable[[Context, spec.ModelSpec, Any, Any], Any]


STREAMS: Mapping[type, Callable[..., Any]] = {
    spec.Streams: Streams,
    spec.HyperStreams: HyperStreams,
    spec.MemoryStreams: MemoryStreams,
    spec.GatedStreams: GatedStreams,
    spec.ResidualBlocks: ResidualBlocks,
}
"""Declaration of several residual streams -> the layer that makes them and joins them."""
_ENDS = (
    _End("distances", lambda s: s.distances, lambda ctx, s, part, w: Distances(ctx, part, w)),
    _End("inputs", lambda s: s.inputs, lambda ctx, s, part, w: LayerInputs(ctx, part, w)),
    _End("frequencies", lambda s: s.scaled_rope, lambda ctx, s, part, w: ScaledFrequencies(part, w, ctx.max_len)),
    _End("streams", lambda s: s.streams, lambda ctx, s, part, w: STREAMS[type(part)](ctx, part, w)),
    _End("embed_norm", lambda s: s.embed_norm, lambda ctx, s, part, w: build_norm(ctx, part, w)),
    _End("embed_projection", lambda s: s.embed_projection, lambda ctx, s, part, w: Projection(ctx, w)),
    _End("norm", lambda s: s.norm, lambda ctx, s, part, w: build_norm(ctx, part, w)),
    _End("head", lambda s: s if s.pooling is None else None, lambda ctx, s, part, w: LMHead(ctx, s, w)),
    _End("classes", lambda s: s.pooling and s.pooling.classes, lambda ctx, s, part, w: Classifier(ctx, part, s.hidden, w)),
    _End("dense", lambda s: (s.pooling and s.pooling.dense) or None, lambda ctx, s, part, w: DenseModules(ctx, part, w)),
    _End("lexical", lambda s: s.pooling and s.pooling.lexical, lambda ctx, s, part, w: WordWeights(ctx, part, s.hidden, w)),
    _End("vision", lambda s: s.vision, lambda ctx, s, part, w: _vision_encoder(part)(ctx, part, w, Block)),
    _End("audio", lambda s: s.audio, lambda ctx, s, part, w: AUDIO[type(part)](ctx, part, w, Block)),
    _End("voice", lambda s: s.voice, lambda ctx, s, part, w: VOICES[type(part)](part)),
    _End("spoken_text", lambda s: s.spoken_text, lambda ctx, s, part, w: TEXTS[type(part)](part, w, ctx.dtype)),
    _End("depth", lambda s: s.depth, lambda ctx, s, part, w: DepthDecoder(part, w, ctx.dtype)),
    _End(
        "tile_source",
        lambda s: s.tile_source,
        lambda ctx, s, part, w: SOURCES[type(part)](ctx, part, w, Block),
    ),
    _End("speech", lambda s: s.speech, lambda ctx, s, part, w: SPEECH[type(part)](replace(ctx, adapters=None), part, w, Block)),
)


AUDIO: Mapping[type, Callable[..., Any]] = {
    spec.AudioSpec: AudioEncoder,
    spec.BlockTranscriberSpec: BlockTranscriber,
    spec.CausalAudioSpec: CausalAudioEncoder,
    spec.ConformerSpec: Conformer,
    spec.ConformerTranscriberSpec: ConformerTranscriber,
    spec.DisentangledClipSpec: DisentangledClipEncoder,
    spec.FastConformerSpec: FastConformer,
    spec.MemoryEncoderSpec: MemoryEncoder,
    spec.MimiEncoderSpec: MimiEncoder,
    spec.Wav2VecSpec: Wav2VecEncoder,
    spec.WindowConformerSpec: WindowConformer,
}
"""Declaration of an audio encoder -> the encoder."""


VOICES: Mapping[type, Callable[..., Any]] = {
    spec.VitsSpec: VitsNetwork,
    spec.MimiSpec: MimiNetwork,
    spec.Code2WavSpec: Code2WavNetwork,
}
"""Declaration of a network that speaks -> the network."""
TEXTS: Mapping[type, Callable[..., Any]] = {spec.TextTable: TextEmbedder, spec.PositionText: PositionEmbedder}
"""The same of texts to be spoken."""


def _vision_encoder(part: Any) -> type[VisionEncoder | SamEncoder | MaskedEncoder | PatchEmbedding | VqEncoder]:
    if isinstance(part, spec.VqEncoderSpec):
        return VqEncoder
    if isinstance(part, spec.SamPairSpec):
        return SamPairEncoder
    if isinstance(part, spec.SamSpec):
        return SamEncoder
    if not part.layers:
        return PatchEmbedding
    return MaskedEncoder if part.masked else VisionEncoder


SPEECH: Mapping[type, Callable[..., Any]] = {
    spec.SpeechEncoder: SpeechEncoder,
    spec.WaveformEncoder: WaveformEncoder,
    spec.ConformerSource: ConformerSource,
    spec.FrameSource: FrameSource,
    spec.GatedSource: GatedSource,
    spec.PooledSource: PooledSource,
    spec.Wav2VecSource: Wav2VecSource,
}
"""The same of speech encoders, which cross-attention reads."""
SOURCES: Mapping[type, Callable[..., Any]] = {
    spec.TileSource: TileEncoder,
    spec.PatchSource: PatchEncoder,
    spec.SwinSource: SwinEncoder,
}
"""The same of image encoders, which cross-attention reads."""


def _build_ends(ctx: Context, s: spec.ModelSpec, weights: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of `_ENDS` that the model has, by key."""
    declared = [(end, end.find(s)) for end in _ENDS if end.key in weights]
    return {end.key: end.build(ctx, s, part, weights[end.key]) for end, part in declared if part is not None}


class Decoder:
    """A model: the result of `build`. Holds no tensors; parameters and caches are passed."""

    reader = None
    """Reader of its parameters from files, if other than `models.files.Files`."""

    def __init__(self, ctx: Context, s: spec.ModelSpec) -> None:
        self.spec, self.mesh, self.max_len, self.formats = s, ctx.mesh, ctx.max_len, ctx.formats
        self.vocab, self.hidden, self.dtype, self.adapters = s.vocab, s.hidden, ctx.dtype, ctx.adapters
        kinds = sizes.cache_specs(s, ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size, ctx.kv_skip)
        weights: Mapping[str, Any] = s.weights()
        owners, kept = sizes.owners(s), list(dict.fromkeys(k for k in kinds if k is not None))
        self.layer_group = tuple(kept.index(kinds[owner]) for owner in owners)  # type: ignore[arg-type]
        """Per mixer: the index in `groups` of the cache it attends to."""
        ropes, read = s.ropes, {owner for i, owner in enumerate(owners) if owner != i}
        self._embed = Embedding(ctx, s, weights["embed"]) if "embed" in weights else None
        self.parts_before, self.parts_behind = parts_before(s), parts_behind(s)
        """Arrays [T, hidden] that pass between this pipeline stage and its neighbours. 0: there is none on that side."""
        self._elsewhere = names_elsewhere(s)
        places = [
            MixerRef(owners[i], self.layer_group[i], _table(ropes, mixer), of, i in read)
            for i, (of, mixer) in enumerate(s.mixers)
        ]
        self.blocks = {
            i: build_layer(ctx, s.layers[i], weights["layers"][i], [place for place in places if place.of == i])
            for i in s.layer_range
        }
        """This stage's layers."""
        self._adapter_rows = None if ctx.adapters is None else AdapterRowsBuilder(ctx)
        last = sizes.mixes_last(s.layers)
        self._mixes_last = last if s.finishes and last in s.layer_range else -1
        here = {of: iter(block.mixers) for of, block in self.blocks.items()}
        mixers = {i: next(here[of]) for i, (of, _) in enumerate(s.mixers) if of in here}
        self.recurrent = any(isinstance(mixer.spec, StateSpec) for mixer in mixers.values())
        """Do some of its layers keep states?"""
        self.cache_scales = frozenset(n for mixer in mixers.values() for n in getattr(mixer, "cache_scales", ()))
        """Names of tensors of the checkpoint that were read while the model was built: scales of keys and values."""
        learned = weights.get("learned", {})
        self._overlay_of = {layer: n for n, layer in enumerate(s.overlay_layers, 1)}
        self._learned = [AddedEmbedding(ctx, s.learned[i], s.embed_width, each) for i, each in learned.items()]
        ends = _build_ends(ctx, s, weights)
        self._distances, self._inputs, self._streams = ends.get("distances"), ends.get("inputs"), ends.get("streams")
        self._frequencies = ends.get("frequencies")
        self._embed_norm, self._norm = ends.get("embed_norm"), ends.get("norm")
        self._embed_projection: Projection | None = ends.get("embed_projection")
        self._head: LMHead | None = ends.get("head")
        self._pooler = None if s.pooling is None else Pooler(ctx, s.pooling, s.hidden)
        self._classes, self._dense, self._lexical = ends.get("classes"), ends.get("dense"), ends.get("lexical")
        self.voice, self.spoken_text = ends.get("voice"), ends.get("spoken_text")
        """The network that speaks, and the embeddings of texts. Their steps are separate executables, too."""
        self.depth: DepthDecoder | None = ends.get("depth")
        self.vision, self.audio, self._speech = ends.get("vision"), ends.get("audio"), ends.get("speech")
        """Encoders. Steps of the first two are separate executables, with the parameters under their keys."""
        self._tile_source = ends.get("tile_source")
        self._text: TextEncoder | None = None
        if "text" in weights:
            assert s.text is not None
            self._text = TextEncoder(replace(ctx, adapters=None), s.text, weights["text"], Block, self.embed)
            ends["text"] = self._text
        self._axis_count = max([3, *(1 + axis for rope in ropes for axis in (*rope.axes, *rope.second))])
        self.specs: dict[str, Any] = self._list_specs(ropes, ends)
        self.layouts: tuple[KVLayout | tuple[KVLayout, ...], ...] = tuple(
            mixers[i].layout if i in mixers else () for i in range(len(places))
        )
        """Per mixer; several where its cache is several arrays, and none where it reads another's or is of another stage."""
        self.groups = sizes.kv_groups(
            kinds, ctx.block_tokens, ctx.state_tokens, [sizes.layout_bytes(each) for each in self.layouts], ctx.spare_states
        )
        """Mixers that keep the same tokens in the same way share a group."""
        first = [next((mixers[i] for i in g.layers if i in mixers), None) for g in self.groups]
        self.attention: tuple[tuple[AttentionBackend, AttnSpec] | None, ...] = tuple(
            None if a is None or a.backend is None else (a.backend, a.spec) for a in first
        )
        """Per group: the backend that makes StepBatch.metadata, and the spec it makes it for, that of all its mixers. None: its
        mixers attend to nothing."""

    def _list_specs(self, ropes: Sequence[spec.Rope], ends: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of this stage. ends: its parts outside layers, by key."""
        specs: dict[str, Any] = {
            "rope": {i: _table_spec(rope, self.max_len) for i, rope in enumerate(ropes) if not rope.scaled},
            "layers": {i: block.specs for i, block in self.blocks.items()},
        }
        if self._embed is not None:
            specs["embed"] = self._embed.specs
        if any(rope.sections for rope in ropes):
            specs["axes"] = {i: _axes_spec(rope.axes or (0,) * (rope.dim // 2)) for i, rope in enumerate(ropes)}
            specs["second_axes"] = {i: _axes_spec(rope.second) for i, rope in enumerate(ropes) if rope.second}
        if self._learned:
            specs["learned"] = {i: each.specs for i, each in enumerate(self._learned)}
        specs |= {key: part.specs for key, part in ends.items()}
        return specs

    @property
    def aligns(self) -> bool:
        """Do some of its heads align tokens with their source?"""
        return bool(self.spec.aligned_heads)

    @property
    def looks_ahead(self) -> bool:
        """Can its images see themselves whole, where the model means them to?"""
        return all(b.mixers[0].spec.spans for i, b in self.blocks.items() if _spans(self.spec.layers[i]))

    def rename(self, name: str) -> str | None:
        """A checkpoint's tensor name as the layers know it; None for redundant tensors, and for those of other stages."""
        known = self.spec.rename(name)
        return None if known is None or known.startswith(self._elsewhere) else known

    def forward(
        self,
        params: Any,
        batch: StepBatch,
        kv: list[Array],
        rows: Array | None = None,
        adapters: Held | None = None,
        replays: list[Replay] | None = None,
        taps: dict[int, Array] | None = None,
        entered: Array | None = None,
        weights: list[Array] | None = None,
        added: Array | None = None,
    ) -> tuple[Array, list[Array]]:
        """The hidden states [T, hidden] after the final norm, and the new caches, one per mixer. Token ids are known:
        batch.tokens holds no ON_DEVICE. Where the model has token types, a token of type n is encoded as its id + n * vocab.

        rows i32[R]: sampled rows, for a result [R, hidden]. After the last mixer, only these rows are computed.
        adapters: those in the state, where the model is built with some. replays: of a step that verifies drafts, filled with
        the inputs of `layers.recurrent.settle`, which moves the states of recurrent layers to the accepted tokens. taps: its
        keys are layers; it gets the hidden states [T, hidden] after each, before any final norm. Keys of other places are in
        `drafts.taps`. With rows, only places after the last mixer, and of these rows.
        entered: what the stage before gives, [parts_before, T, hidden]. A stage before the last gives
        [parts_behind, T, hidden] for all rows.
        weights: where the model `aligns`, of a step with `EachToken`, filled with `Flow.weights`.
        added: [T, hidden], added to embedded tokens."""
        adapted = None
        if self._adapter_rows is not None:
            adapted = self._adapter_rows(batch.get(Adapters), batch.token_seq, adapters)
        residual, tables = None, params.get("rope", {})
        if entered is None:
            x, flow = self.prepare_inputs(params, batch, kv, tables, adapted, added)
        else:
            x, flow = entered[0], self._begin_flow(params, batch, kv, tables, _overlay_vectors(batch), adapted)
            residual = entered[1] if self.parts_before > 1 else None
        flow.replays, flow.weights = replays, weights
        if taps is not None and EMBEDDED in taps:
            taps[EMBEDDED] = x
        sources = batch.get(Sources)
        if sources is not None and self._speech is not None:
            flow.sources = self._speech(params["speech"], sources.features)
        elif sources is not None and self._text is not None:
            flow.sources = self._text(params, sources.features)
        elif sources is not None and self._tile_source is not None:
            flow.sources = self._tile_source(params["tile_source"], sources.features)
        laid = flow.laid
        late = rows is not None and laid is not None and laid.shape[1] // self.hidden > len(self.spec.layers)
        cut = -1 if rows is None or late else self._mixes_last
        for i, block in self.blocks.items():
            if i == cut:  # no layer behind it looks at either
                flow.read, flow.batch = rows, replace(batch, last_alone=rows is batch.last_row)
                if flow.adapter_rows is not None and self._adapter_rows is not None:
                    flow.adapter_rows_read = self._adapter_rows(batch.get(Adapters), batch.token_seq, adapters, rows)
            x, residual = block(params["layers"][i], x, residual, flow)
            at = self._overlay_of.get(i, 0) if self._overlay_of else i + 1
            if laid is not None and at and at < laid.shape[1] // self.hidden:
                x = x + laid[:, at * self.hidden : (at + 1) * self.hidden].to(x.dtype)
            if taps is not None and i in taps:
                taps[i] = x if residual is None else x + residual
        if self.parts_behind:
            return torch.stack([x] if residual is None else [x, residual]), flow.caches
        if self._streams is not None:
            x = self._streams.leave(params.get("streams", {}), x, flow)
        if self._norm is not None:
            x, _ = self._norm.add(params.get("norm"), x, residual)
        elif residual is not None:
            x = x + residual
        if taps is not None and FINAL in taps:
            taps[FINAL] = x
        return x if rows is None or cut >= 0 else x.index_select(0, rows), flow.caches

    def prepare_inputs(
        self, params: Any, batch: StepBatch, kv: Sequence[Array], tables: Mapping[int, Any],
        adapted: AdapterRows | None = None, added: Array | None = None,
    ) -> tuple[Array, Flow]:  # fmt: skip
        """The first layer's input, [T, hidden] or all streams [T, n, hidden], and the step's `Flow`. tables, adapted: as Flow
        has them (`adapter_rows`)."""
        laid = _overlay_vectors(batch)
        x, inputs = self._embed_tokens(params, batch, laid, adapted, added), None
        if self._inputs is not None:
            assert self.spec.inputs is not None
            tokens, overlays = batch.tokens, batch.get(Overlays)
            if overlays is not None:
                tokens = torch.where(overlays.pick >= 0, self.spec.inputs.pad, tokens)
            inputs = self._inputs(params["inputs"], tokens, x)
        if self._streams is not None:
            x = self._streams.enter(params.get("streams", {}), x)
        return x, self._begin_flow(params, batch, kv, tables, laid, adapted, inputs)

    def _begin_flow(
        self, params: Any, batch: StepBatch, kv: Sequence[Array], tables: Mapping[int, Any], laid: Array | None,
        adapted: AdapterRows | None, inputs: Array | None = None,
    ) -> Flow:  # fmt: skip
        flow = Flow(batch, list(kv), tables, inputs, laid=laid, adapter_rows=adapted)
        if self._frequencies is not None:
            flow.tables, flow.rows = self._frequencies(params["frequencies"], batch.positions)
        if self._distances is not None:
            flow.distances = self._distances(params["distances"])
        self._along_axes(params, flow)
        return flow

    def _along_axes(self, params: Any, flow: Flow) -> None:
        """With several position axes, each token has a separate row in the rotary tables."""
        if "axes" not in params:
            return
        axes, at = flow.batch.get(Axes), flow.batch.positions
        flow.axes = AxisTables(
            at, None if axes is None else axes.shift, self.max_len - 1, flow.tables, params["axes"], self._axis_count
        )
        if axes is None:
            return
        flow.rows, where = (torch.ones_like(at).cumsum(0) - 1).to(torch.int32), flow.axes.at
        flow.second = {i: flow.axes.read(i, where, columns) for i, columns in params.get("second_axes", {}).items()}
        flow.tables = {i: flow.axes.rows(i, where) for i in flow.tables}

    def _embed_tokens(
        self, params: Any, batch: StepBatch, laid: Array | None, adapted: AdapterRows | None, more: Array | None
    ) -> Array:
        """[T, hidden]. laid: result of `_overlay_vectors`. more: as `added` of `forward`."""
        assert self._embed is not None
        tokens, types = batch.tokens, None
        if self.spec.types > 1:
            types, tokens = torch.div(tokens, self.vocab, rounding_mode="floor"), tokens % self.vocab
        x: Array = self._embed(params["embed"], tokens, adapted)
        x = x if more is None else x + more.to(x.dtype)
        overlays = batch.get(Overlays)
        if laid is not None and self.spec.overlays_added:
            x = x + laid.to(x.dtype)
        elif overlays is not None and laid is not None and not self.spec.overlays_last:
            x = torch.where((overlays.pick >= 0).unsqueeze(1), laid[:, : self.hidden].to(x.dtype), x)
        added = [table(params["learned"][i], batch, types) for i, table in enumerate(self._learned)]
        late = self.spec.learned_after_norm
        for each in added if not late else ():  # all of them, as only the first stage embeds
            x = x + each
        if self._embed_norm is not None:
            x = self._embed_norm(params.get("embed_norm", {}), x)  # a norm may have no weight
        for each in added if late else ():
            x = x + each
        if overlays is not None and laid is not None and self.spec.overlays_last:
            x = torch.where((overlays.pick >= 0).unsqueeze(1), laid.to(x.dtype), x)
        return x if self._embed_projection is None else self._embed_projection(params["embed_projection"], x)

    def embed(self, params: Any, tokens: Array) -> Array:
        """Token ids i32[N] -> [N, hidden]: their embeddings, as layers of a drafter read them."""
        assert self._embed is not None
        x: Array = self._embed(params["embed"], tokens)
        return x

    def metadata(self, batch: StepBatch, shape: StepShape | None) -> tuple[Mapping[str, Any], ...]:
        """Host work for each group, as in `AttentionBackend.metadata`: the values of `batch.metadata`. ValueError: the step
        lacks a part that the model requires."""
        top = max(g.top for g in self.groups)
        if top and batch.get(Sparse) is None and (batch.context + batch.query > top).any():
            raise ValueError(f"StepBatch.parts: tokens see more than the {top} that they read, and Sparse is missing")
        return tuple(
            {} if group is None else group[0].metadata(batch, g, group[1], shape) for g, group in enumerate(self.attention)
        )

    @property
    def pools(self) -> bool:
        """Is the output a vector per sequence, or a number per class, rather than tokens?"""
        return self._pooler is not None

    def pooled_rows(self, batch: StepBatch) -> Array | None:
        """i32[S]: the rows that `pooled` reads. None: all."""
        assert self._pooler is not None
        return None if self._lexical is not None else self._pooler.rows(batch)

    def sequence_slots(self, batch: StepBatch, adapters: Held | None, row: Array | None = None) -> SequenceSlots | None:
        """The adapters of the sequences, or of the tokens in these rows i32[N]. None: those of the step keep the classifier."""
        part = batch.get(Adapters)
        if part is None or part.level < EXTENDED or adapters is None or self._classes is None:
            return None
        return SequenceSlots(part.slot if row is None else part.slot[batch.token_seq[row].long()], adapters)

    def pool(self, params: Any, x: Array, batch: StepBatch, adapters: Held | None = None) -> Array:
        """x of `forward` of whole sequences, the `pooled_rows` [S, hidden] or all [T, hidden] -> f32[S, n], a vector or
        classes. Only where the model `pools`. adapters: as in `forward`."""
        assert self._pooler is not None
        if self._lexical is not None:
            return self._lexical.pool(params["lexical"], x, batch)
        result = self._tail(params, self._pooler(x, batch), self.sequence_slots(batch, adapters))
        return _with_encoded(result, batch) if self.spec.pooling is not None and self.spec.pooling.encoded else result

    def each(self, params: Any, x: Array, row: Array, slots: SequenceSlots | None = None) -> Array:
        """The same of single tokens, those in these rows i32[N] of x: f32[N, n]. slots: their `sequence_slots`."""
        x = x.index_select(0, row)
        if self._lexical is not None:
            return self._lexical(params["lexical"], x)
        return self._tail(params, x.to(torch.float32), slots)

    def _tail(self, params: Any, vectors: Array, slots: SequenceSlots | None) -> Array:
        if self._dense is not None:
            vectors = self._dense(params["dense"], vectors)
        return vectors if self._classes is None else self._classes(params["classes"], vectors, slots)

    def head_rows(self, batch: StepBatch, adapters: Held | None, rows: Array) -> AdapterRows | None:
        """The adapters of these rows i32[N] for `logits`. None: those of the step do not change the output matrix."""
        part = batch.get(Adapters)
        if self._adapter_rows is None or part is None or part.level < EXTENDED:
            return None
        return self._adapter_rows(part, batch.token_seq, adapters, rows)

    def logits(self, params: Any, x: Array, adapted: AdapterRows | None = None) -> Array:
        """x [N, hidden] of `forward` -> f32[N, vocab]. adapted: its `head_rows`."""
        assert self._head is not None
        return self._head(params["head"], x, adapted)

    @property
    def has_argmax(self) -> bool:
        """Can the output matrix give the argmax without the logits?"""
        return self._head is not None and self._head.has_argmax

    def argmax(self, params: Any, x: Array) -> tuple[Array, Array]:
        """x [N, hidden] of `forward` -> (tokens i32[N] of the largest logits, these f32[N]): equal to the argmax of `logits`,
        but faster. Only where the model `has_argmax`."""
        assert self._head is not None
        return self._head.argmax(params["head"], x)


def _with_encoded(vectors: Array, batch: StepBatch) -> Array:
    """The same f32[S, n], with the encoder's vector for each sequence that is the placeholder of one."""
    overlays = batch.get(Overlays)
    if overlays is None:
        return vectors
    pick = overlays.pick.index_select(0, batch.last_row)
    return torch.where((pick >= 0).unsqueeze(1), overlays.vector[pick.clamp(min=0)][:, : vectors.shape[1]], vectors)


def _overlay_vectors(batch: StepBatch) -> Array | None:
    """The vector of each token that has one, f32[T, hidden * n], zeros for others; None if no token has. Values after the first
    `hidden` are added to the outputs of the first layers."""
    overlays = batch.get(Overlays)
    if overlays is None:
        return None
    return overlays.vector[overlays.pick.clamp(min=0)] * (overlays.pick >= 0).unsqueeze(1)


def _spans(layer: spec.Layer) -> bool:
    return isinstance(layer.mixer, spec.Attention) and layer.mixer.spans


def _table(ropes: Sequence[spec.Rope], mixer: spec.Mixer) -> int:
    return -1 if mixer.rope is None else ropes.index(mixer.rope)


def _axes_spec(axes: Sequence[int]) -> ParamSpec:
    """i64[1, 1, rotary_dim]: the axis by which each column of the table is read. axes: of each frequency."""
    return ParamSpec(Weight(()), "int64", make=partial(torch.tensor, [[[*axes, *axes]]]))


def _table_spec(rope: spec.Rope, max_len: int) -> ParamSpec:
    make = partial(cos_sin_table, dict(rope.parameters), rope.dim, rope.trained, max_len)
    return ParamSpec(Weight(()), "float32", make=make)
