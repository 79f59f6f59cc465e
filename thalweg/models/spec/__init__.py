"""The declaration of a model: a list of layers, the parts around them, and the tensors of each part.

A family (`families/`) turns a configuration into a `ModelSpec`; `decoder` assembles layers by the kinds named here, and
`sizes` counts bytes by walking the same declarations. Loads no tensor framework, so that memory can be planned, and a
configuration rejected, before anything heavy is loaded.

Names of tensors are those of the checkpoint: each part names its tensors, relative to the part that contains it.
"""

from __future__ import annotations

from thalweg.models.spec.adapter import Adapter, StackedAdapter
from thalweg.models.spec.altup import AltUp, Laurel, Streams
from thalweg.models.spec.attention import Attention, RelativeBias, Rows
from thalweg.models.spec.audio import AudioSpec, Conv
from thalweg.models.spec.block_sparse import BlockSparseAttention
from thalweg.models.spec.block_transcriber import BlockTranscriberSpec
from thalweg.models.spec.causal_audio import CausalAudioSpec
from thalweg.models.spec.code2wav import Code2WavSpec
from thalweg.models.spec.compressed import CompressedAttention, KeptEntries, WindowPooling
from thalweg.models.spec.conformer import ConformerSpec
from thalweg.models.spec.conformer_layer import ConformerLayer
from thalweg.models.spec.conformer_source import ConformerSource
from thalweg.models.spec.conformer_transcriber import ConformerTranscriberSpec
from thalweg.models.spec.convolved import ConvolvedAttention, ConvolvedHeads
from thalweg.models.spec.cross import CrossAttention, SourceMLP
from thalweg.models.spec.davit import DaViTSpec, DaViTStage
from thalweg.models.spec.deep_router import DeepRouter
from thalweg.models.spec.delay import DelayMLP
from thalweg.models.spec.delta import DeltaNet
from thalweg.models.spec.depth import CodeRows, DepthSpec, PositionText, TextTable
from thalweg.models.spec.differential import DifferentialAttention
from thalweg.models.spec.disentangled import DisentangledAttention, Distances
from thalweg.models.spec.disentangled_clip import DisentangledClipSpec
from thalweg.models.spec.engram import EngramInput
from thalweg.models.spec.entrances import FrameConvolutions, FrameProjection, SampleConvolutions
from thalweg.models.spec.expert_attention import ExpertAttention
from thalweg.models.spec.fastconformer import FastConformerSpec, LanguagePrompt
from thalweg.models.spec.frame_source import FrameSource
from thalweg.models.spec.gated_source import GatedSource
from thalweg.models.spec.gated_streams import GatedResidual, GatedStreams
from thalweg.models.spec.grid_conv import GridConv
from thalweg.models.spec.head_mamba import HeadMamba
from thalweg.models.spec.hyper import HyperConnection, HyperStreams
from thalweg.models.spec.indexer import Indexer
from thalweg.models.spec.inner_mamba2 import InnerMamba2
from thalweg.models.spec.kda import KimiDelta
from thalweg.models.spec.latent import LatentAttention
from thalweg.models.spec.latent_reader import LatentReaderSpec
from thalweg.models.spec.lightning import LightningAttention
from thalweg.models.spec.long_encoder import GlobalLocalAttention, SummaryAttention
from thalweg.models.spec.loop_input import LoopInput
from thalweg.models.spec.looped import LoopedAttention, LoopedHeads
from thalweg.models.spec.low_rank import LowRankProduct
from thalweg.models.spec.mamba import Mamba
from thalweg.models.spec.mamba2 import Mamba2
from thalweg.models.spec.matrix_lstm import MatrixLSTM
from thalweg.models.spec.memory import LowRankMLP, MemoryPart, MemoryStreams
from thalweg.models.spec.memory_encoder import MemoryEncoderSpec, MemoryLayer
from thalweg.models.spec.memory_gate import GatedMemory
from thalweg.models.spec.mimi import MimiSpec
from thalweg.models.spec.mimi_encoder import MimiEncoderSpec
from thalweg.models.spec.mlp import MLP, UngatedMLP
from thalweg.models.spec.modality_moe import ModalityMoE
from thalweg.models.spec.model import EmbedProjection, Layer, LearnedEmbedding, ModelSpec, Names
from thalweg.models.spec.moe import MoE
from thalweg.models.spec.mtp import MTPSpec
from thalweg.models.spec.ngram import KeptRows, NGramInput
from thalweg.models.spec.norm import (
    AnyNorm,
    DenseNorm,
    GatedNorm,
    HeadNorm,
    LayerNorm,
    NestedNorm,
    Norm,
    Norms,
    PairNorm,
    Scale,
    ScaledNorm,
)
from thalweg.models.spec.parallel_moe import ParallelMoE
from thalweg.models.spec.part import FFN, Mixer
from thalweg.models.spec.patch_source import PatchSource
from thalweg.models.spec.perceiver import PerceiverSpec
from thalweg.models.spec.perlayer import LayerEnding, LayerInput, LayerInputs
from thalweg.models.spec.poly_norm import PolyNormMLP
from thalweg.models.spec.pooled_index import IndexPooling, PooledIndexer
from thalweg.models.spec.pooled_keys import PooledKeys, PooledSparseAttention
from thalweg.models.spec.pooled_source import PooledSource
from thalweg.models.spec.pooling_adapter import PoolingAdapter
from thalweg.models.spec.qformer import QFormerSpec
from thalweg.models.spec.query_image import QueryImageSpec
from thalweg.models.spec.query_projector import QueryProjectorSpec
from thalweg.models.spec.resampler import ResamplerSpec
from thalweg.models.spec.residual_blocks import DepthAttention, ResidualBlocks
from thalweg.models.spec.residual_gate import ResidualGate
from thalweg.models.spec.residual_scaling import ResidualScaling
from thalweg.models.spec.rglru import GatedRecurrence
from thalweg.models.spec.rope import ROPE_TYPES, Rope, describe_stretch, rope_type
from thalweg.models.spec.rwkv import AverageMix, ChannelMix, DeltaMix
from thalweg.models.spec.sam import ClipReaderSpec, QueryEncoderSpec, SamSpec
from thalweg.models.spec.sam_pair import SamPairSpec
from thalweg.models.spec.shared_entries import SharedAttention, SharedEntries
from thalweg.models.spec.short_conv import ShortConv
from thalweg.models.spec.shortcut import ShortcutMoE
from thalweg.models.spec.smoothed import DistanceAttention, KeptTaps, SinkMoE, SmoothedFFN
from thalweg.models.spec.sparse import SparseMLP
from thalweg.models.spec.speech import SpeechEncoder
from thalweg.models.spec.stream_skip import StreamSkip
from thalweg.models.spec.swin_source import SwinSource
from thalweg.models.spec.text_encoder import TextEncoder
from thalweg.models.spec.text_qformer import TextQFormerSpec
from thalweg.models.spec.tile_source import TileSource
from thalweg.models.spec.transcript import CTCHead, TranscriptHead, TransducerHead
from thalweg.models.spec.vision import AttentionPoolSpec, ProjectorSpec, VisionSpec
from thalweg.models.spec.vits import VitsSpec, VocoderSpec
from thalweg.models.spec.vq_encoder import VqEncoderSpec
from thalweg.models.spec.wav2vec import PlaceConvolution, Wav2VecSpec
from thalweg.models.spec.wav2vec_source import Wav2VecSource
from thalweg.models.spec.waveform import WaveformEncoder
from thalweg.models.spec.window_conformer import WindowConformerSpec
from thalweg.models.spec.window_pool import WindowPoolSpec
from thalweg.models.spec.window_qformer import WindowQFormerSpec, WindowQFormersSpec
from thalweg.models.spec.xielu import XieluMLP

__all__ = [
    "FFN",
    "MLP",
    "ROPE_TYPES",
    "Adapter",
    "AltUp",
    "AnyNorm",
    "Attention",
    "AttentionPoolSpec",
    "AudioSpec",
    "AverageMix",
    "BlockSparseAttention",
    "BlockTranscriberSpec",
    "CTCHead",
    "CausalAudioSpec",
    "ChannelMix",
    "ClipReaderSpec",
    "Code2WavSpec",
    "CodeRows",
    "CompressedAttention",
    "ConformerLayer",
    "ConformerSource",
    "ConformerSpec",
    "ConformerTranscriberSpec",
    "Conv",
    "ConvolvedAttention",
    "ConvolvedHeads",
    "CrossAttention",
    "DaViTSpec",
    "DaViTStage",
    "DeepRouter",
    "DelayMLP",
    "DeltaMix",
    "DeltaNet",
    "DenseNorm",
    "DepthAttention",
    "DepthSpec",
    "DifferentialAttention",
    "DisentangledAttention",
    "DisentangledClipSpec",
    "DistanceAttention",
    "Distances",
    "EmbedProjection",
    "EngramInput",
    "ExpertAttention",
    "FastConformerSpec",
    "FrameConvolutions",
    "FrameProjection",
    "FrameSource",
    "GatedMemory",
    "GatedNorm",
    "GatedRecurrence",
    "GatedResidual",
    "GatedSource",
    "GatedStreams",
    "GlobalLocalAttention",
    "GridConv",
    "HeadMamba",
    "HeadNorm",
    "HyperConnection",
    "HyperStreams",
    "IndexPooling",
    "Indexer",
    "InnerMamba2",
    "KeptEntries",
    "KeptRows",
    "KeptTaps",
    "KimiDelta",
    "LanguagePrompt",
    "LatentAttention",
    "LatentReaderSpec",
    "Laurel",
    "Layer",
    "LayerEnding",
    "LayerInput",
    "LayerInputs",
    "LayerNorm",
    "LearnedEmbedding",
    "LightningAttention",
    "LoopInput",
    "LoopedAttention",
    "LoopedHeads",
    "LowRankMLP",
    "LowRankProduct",
    "MTPSpec",
    "Mamba",
    "Mamba2",
    "MatrixLSTM",
    "MemoryEncoderSpec",
    "MemoryLayer",
    "MemoryPart",
    "MemoryStreams",
    "MimiEncoderSpec",
    "MimiSpec",
    "Mixer",
    "MoE",
    "ModalityMoE",
    "ModelSpec",
    "NGramInput",
    "Names",
    "NestedNorm",
    "Norm",
    "Norms",
    "PairNorm",
    "ParallelMoE",
    "PatchSource",
    "PerceiverSpec",
    "PlaceConvolution",
    "PolyNormMLP",
    "PooledIndexer",
    "PooledKeys",
    "PooledSource",
    "PooledSparseAttention",
    "PoolingAdapter",
    "PositionText",
    "ProjectorSpec",
    "QFormerSpec",
    "QueryEncoderSpec",
    "QueryImageSpec",
    "QueryProjectorSpec",
    "RelativeBias",
    "ResamplerSpec",
    "ResidualBlocks",
    "ResidualGate",
    "ResidualScaling",
    "Rope",
    "Rows",
    "SamPairSpec",
    "SamSpec",
    "SampleConvolutions",
    "Scale",
    "ScaledNorm",
    "SharedAttention",
    "SharedEntries",
    "ShortConv",
    "ShortcutMoE",
    "SinkMoE",
    "SmoothedFFN",
    "SourceMLP",
    "SparseMLP",
    "SpeechEncoder",
    "StackedAdapter",
    "StreamSkip",
    "Streams",
    "SummaryAttention",
    "SwinSource",
    "TextEncoder",
    "TextQFormerSpec",
    "TextTable",
    "TileSource",
    "TranscriptHead",
    "TransducerHead",
    "UngatedMLP",
    "VisionSpec",
    "VitsSpec",
    "VocoderSpec",
    "VqEncoderSpec",
    "Wav2VecSource",
    "Wav2VecSpec",
    "WaveformEncoder",
    "WindowConformerSpec",
    "WindowPoolSpec",
    "WindowPooling",
    "WindowQFormerSpec",
    "WindowQFormersSpec",
    "XieluMLP",
    "describe_stretch",
    "rope_type",
]
