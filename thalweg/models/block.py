"""One layer of a model: mixers and a feed-forward part, with norms and a residual stream around them.

The builder of a part is looked up by the type of its declaration. A new type of layer adds a line to `MIXERS`, `FFNS` or
`AROUND`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from thalweg.hal.step import Array
from thalweg.models import sizes, spec
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.altup import AltUp, Laurel
from thalweg.models.layers.attention import Attention
from thalweg.models.layers.block_sparse import BlockSparseAttention
from thalweg.models.layers.compressed import CompressedAttention, KeptEntries, WindowPooling
from thalweg.models.layers.convolved import ConvolvedAttention, ConvolvedHeads
from thalweg.models.layers.cross import CrossAttention, SourceMLP
from thalweg.models.layers.delay import DelayScaledMLP
from thalweg.models.layers.delta import GatedDeltaNet
from thalweg.models.layers.differential import DifferentialAttention
from thalweg.models.layers.disentangled import DisentangledAttention
from thalweg.models.layers.expert_attention import ExpertAttention
from thalweg.models.layers.gated_streams import GatedResidual
from thalweg.models.layers.grid_conv import GridConv
from thalweg.models.layers.head_mamba import HeadMamba
from thalweg.models.layers.hyper import HyperConnection
from thalweg.models.layers.inner_mamba2 import InnerMamba2
from thalweg.models.layers.joined import offer_joined
from thalweg.models.layers.kda import KimiDeltaAttention
from thalweg.models.layers.latent import LatentAttention
from thalweg.models.layers.lightning import LightningAttention
from thalweg.models.layers.long_encoder import GlobalLocalAttention, SummaryAttention
from thalweg.models.layers.loop_input import LoopInput
from thalweg.models.layers.looped import LoopedAttention, LoopedHeads
from thalweg.models.layers.mamba import Mamba
from thalweg.models.layers.mamba2 import Mamba2
from thalweg.models.layers.matrix_lstm import MatrixLSTM
from thalweg.models.layers.memory import LowRankMLP, MemoryPart
from thalweg.models.layers.memory_gate import GatedMemory
from thalweg.models.layers.mlp import GatedMLP
from thalweg.models.layers.modality_moe import ModalityExperts
from thalweg.models.layers.moe import Experts
from thalweg.models.layers.ngram import KeptRows
from thalweg.models.layers.norm import BoundNorm, build_norm
from thalweg.models.layers.parallel_moe import ParallelExperts
from thalweg.models.layers.perlayer import LayerEnding
from thalweg.models.layers.poly_norm import PolyNormMLP
from thalweg.models.layers.pooled_index import IndexPooling
from thalweg.models.layers.pooled_keys import PooledKeys, PooledSparseAttention
from thalweg.models.layers.residual_blocks import DepthAttention
from thalweg.models.layers.residual_gate import ResidualGate
from thalweg.models.layers.residual_scaling import ResidualScaling
from thalweg.models.layers.rglru import GatedRecurrence
from thalweg.models.layers.rwkv import AverageMix, ChannelMix, DeltaMix
from thalweg.models.layers.shared_entries import SharedAttention, SharedEntries
from thalweg.models.layers.short_conv import ShortConv
from thalweg.models.layers.shortcut import ShortcutExperts
from thalweg.models.layers.smoothed import DistanceAttention, KeptTaps, SmoothedFFN
from thalweg.models.layers.sparse import SparseGatedMLP
from thalweg.models.layers.stream_skip import StreamSkip
from thalweg.models.layers.ungated import UngatedMLP
from thalweg.models.layers.xielu import XieluMLP

MIXERS: Mapping[type, Callable[..., Any]] = {
    spec.Attention: Attention,
    spec.AverageMix: AverageMix,
    spec.GlobalLocalAttention: GlobalLocalAttention,
    spec.BlockSparseAttention: BlockSparseAttention,
    spec.ChannelMix: ChannelMix,
    spec.CompressedAttention: CompressedAttention,
    spec.ConvolvedAttention: ConvolvedAttention,
    spec.ConvolvedHeads: ConvolvedHeads,
    spec.CrossAttention: CrossAttention,
    spec.DeltaMix: DeltaMix,
    spec.DeltaNet: GatedDeltaNet,
    spec.DifferentialAttention: DifferentialAttention,
    spec.DisentangledAttention: DisentangledAttention,
    spec.ExpertAttention: ExpertAttention,
    spec.GatedRecurrence: GatedRecurrence,
    spec.GridConv: GridConv,
    spec.HeadMamba: HeadMamba,
    spec.IndexPooling: IndexPooling,
    spec.InnerMamba2: InnerMamba2,
    spec.KeptEntries: KeptEntries,
    spec.KeptRows: KeptRows,
    spec.KeptTaps: KeptTaps,
    spec.DistanceAttention: DistanceAttention,
    spec.KimiDelta: KimiDeltaAttention,
    spec.LatentAttention: LatentAttention,
    spec.LightningAttention: LightningAttention,
    spec.LoopedAttention: LoopedAttention,
    spec.LoopedHeads: LoopedHeads,
    spec.Mamba: Mamba,
    spec.Mamba2: Mamba2,
    spec.MatrixLSTM: MatrixLSTM,
    spec.PooledKeys: PooledKeys,
    spec.PooledSparseAttention: PooledSparseAttention,
    spec.SharedAttention: SharedAttention,
    spec.SharedEntries: SharedEntries,
    spec.ShortConv: ShortConv,
    spec.SummaryAttention: SummaryAttention,
    spec.WindowPooling: WindowPooling,
}
FFNS: Mapping[type, Callable[..., Any]] = {
    spec.MLP: GatedMLP,
    spec.GatedMemory: GatedMemory,
    spec.PolyNormMLP: PolyNormMLP,
    spec.DelayMLP: DelayScaledMLP,
    spec.UngatedMLP: UngatedMLP,
    spec.LowRankMLP: LowRankMLP,
    spec.MoE: Experts,
    spec.ModalityMoE: ModalityExperts,
    spec.XieluMLP: XieluMLP,
    spec.SparseMLP: SparseGatedMLP,
    spec.ParallelMoE: ParallelExperts,
    spec.ShortcutMoE: ShortcutExperts,
    spec.SmoothedFFN: SmoothedFFN,
    spec.SourceMLP: SourceMLP,
}
AROUND: Mapping[type, Callable[..., Any]] = {
    spec.LayerEnding: LayerEnding,
    spec.AltUp: AltUp,
    spec.HyperConnection: HyperConnection,
    spec.MemoryPart: MemoryPart,
    spec.GatedResidual: GatedResidual,
    spec.ResidualGate: ResidualGate,
    spec.StreamSkip: StreamSkip,
    spec.LoopInput: LoopInput,
    spec.ResidualScaling: ResidualScaling,
    spec.DepthAttention: DepthAttention,
}


class Block:
    """One layer. In and out: the addition to the residual stream, and the stream. Without a stream, the addition is the
    whole."""

    def __init__(self, ctx: Context, layer: spec.Layer, weights: Mapping[str, Any], places: Sequence[MixerRef]) -> None:
        """places: of its mixers."""
        self._parallel, self._multiplier, self.places = layer.parallel, layer.multiplier, places
        norms = {k: build_norm(ctx, getattr(layer.norms, k), w) for k, w in weights["norms"].items()}
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
        read_again = layer.parallel or layer.laurel is not None  # the normed input, by other parts
        plain = self.mixers and not self._several and self._mixer_scales[0] == (1.0, 1.0) and not read_again
        self._joined = offer_joined(ctx, self._enter, self.mixers[0]) if plain else None
        self._ffn_joined = None if layer.parallel else offer_joined(ctx, self._ffn_enter, self._ffn)
        self._laurel = Laurel(ctx, layer.laurel, weights["laurel"]) if layer.laurel else None
        if self._laurel is not None:
            self.specs["laurel"] = self._laurel.specs

    def __call__(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array | None]:
        norms = p.get("norms", {})  # of norms without weights nothing is loaded
        if not self.mixers:
            return self._only(p, x, residual, flow)
        x, entered, residual = self._enter_mixers(p, x, residual, flow)
        if flow.read is not None:
            flow.adapter_rows = flow.adapter_rows_read
        if self._leave is not None:
            x = self._leave(norms.get("mixer_out"), x)
        if self._parallel:
            if self._ffn_enter is not None:
                entered = self._ffn_enter(norms.get("ffn"), residual)
            x = x + self._last(p, entered, flow)
            return self._scale(x), residual
        x, stream = self._scale(x), residual
        if self._laurel is not None:
            x, stream = (x + residual + self._laurel(p["laurel"], entered)) * 0.5**0.5, None
        if self._sum is not None:
            x, stream = self._sum.add(norms.get("mixer_sum"), x, residual)[0], None
        return (x, stream) if self._ffn is None else self._only(p, x, stream, flow)

    def _enter_mixers(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array, Array]:
        """(the mixers' output, their input, the residual stream), of the sampled rows."""
        norm = p.get("norms", {}).get("mixer")
        if self._joined is not None:  # nothing else reads the input
            x, total = self._joined(norm, p["mixer"], x, residual, flow)
            total = flow.cut(total)
            return x if getattr(self.mixers[0], "cuts", False) else flow.cut(x), total, total
        entered, total = _add_and_norm(self._enter, norm, x, residual)
        return self._mix(p["mixer"], entered, flow), flow.cut(entered), flow.cut(total)

    def _only(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array | None]:
        """The feed-forward part, applied to the layer's input so far."""
        norm = p.get("norms", {}).get("ffn")
        if self._ffn_joined is not None:
            x, residual = self._ffn_joined(norm, p["ffn"], x, residual, flow)
            x = self._scale(self._finish(p, x))
        else:
            entered, residual = _add_and_norm(self._ffn_enter, norm, x, residual)
            x = self._scale(self._last(p, entered, flow))
        if self._ffn_sum is not None:
            return self._ffn_sum.add(p.get("norms", {}).get("ffn_sum"), x, residual)[0], None
        return x, residual

    def _mix(self, p: Mapping[Any, Any], x: Array, flow: Flow) -> Array:
        """The sum of the mixers' outputs, for the sampled rows."""
        parts = []
        for i, (mixer, (before, after)) in enumerate(zip(self.mixers, self._mixer_scales, strict=True)):
            out = mixer(p.get(i, {}) if self._several else p, _times(x, before), flow)
            if out is None:  # it keeps something for the mixers after it
                continue
            parts.append(_times(out if getattr(mixer, "cuts", False) else flow.cut(out), after))
        return sum(parts[1:], parts[0])

    def _last(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        assert self._ffn is not None
        return self._finish(p, self._ffn(p["ffn"], x, flow))

    def _finish(self, p: Mapping[str, Any], x: Array) -> Array:
        """The scale and the norm after the feed-forward part."""
        x = _times(x, self._ffn_scale)
        return x if self._ffn_leave is None else self._ffn_leave(p.get("norms", {}).get("ffn_out"), x)

    def _scale(self, x: Array) -> Array:
        return _times(x, self._multiplier)


def build_layer(ctx: Context, layer: spec.Layer, weights: Mapping[str, Any], places: Sequence[MixerRef]) -> Any:
    """A block with its wrapper, if it has one."""
    block = Block(ctx, layer, weights, places)
    if layer.around is None:
        return block
    return AROUND[type(layer.around)](ctx, layer.around, block, weights["around"], places[0].of if places else -1)


def _times(x: Array, by: float) -> Array:
    return x if by == 1.0 else x * by


def _for(ctx: Context, layer: int, mixer: spec.Mixer) -> Context:
    """Context of a mixer: its cache may hold the model's dtype, unlike those of other layers."""
    reads = getattr(mixer, "reads", None)
    skipped = ctx.kv_dtype and sizes.is_skipped(layer if reads is None else reads, mixer, ctx.kv_skip)
    return replace(ctx, kv_dtype="") if skipped else ctx


def _add_and_norm(norm: BoundNorm | None, p: Any, x: Array, residual: Array | None) -> tuple[Array, Array]:
    """The input of a layer's part after its norm, and the residual stream."""
    if norm is not None:
        return norm.add(p, x, residual)
    total = x if residual is None else x + residual
    return total, total
