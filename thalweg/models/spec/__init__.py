"""What a model is, declared: a list of layers, what lies around them, and the tensors each part is made of.

A family (`families/`) turns a configuration into a `ModelSpec`; `decoder` assembles layers by the kinds named here, and
`sizes` counts bytes by walking the same declarations. Loads no tensor framework, so that memory can be planned, and a
configuration refused, before anything heavy is loaded.

Names of tensors are those of the checkpoint: each part names its own, relative to what it is a part of.
"""

from __future__ import annotations

from thalweg.models.spec.adapter import Adapter
from thalweg.models.spec.altup import AltUp, Laurel, Streams
from thalweg.models.spec.attention import Attention, Relative
from thalweg.models.spec.beside import Beside
from thalweg.models.spec.cross import CrossAttention
from thalweg.models.spec.delta import DeltaNet
from thalweg.models.spec.disentangled import DisentangledAttention, Distances
from thalweg.models.spec.hearing import Conv, Hearing
from thalweg.models.spec.indexer import Indexer
from thalweg.models.spec.kda import KimiDelta
from thalweg.models.spec.latent import LatentAttention
from thalweg.models.spec.lightning import LightningAttention
from thalweg.models.spec.mamba import Mamba
from thalweg.models.spec.mamba2 import Mamba2
from thalweg.models.spec.mlp import MLP, UngatedMLP
from thalweg.models.spec.model import Layer, Learned, ModelSpec, Names
from thalweg.models.spec.moe import MoE
from thalweg.models.spec.norm import AnyNorm, HeadNorm, LayerNorm, Norm, Norms, Scale
from thalweg.models.spec.part import FFN, Mixer
from thalweg.models.spec.perlayer import Ending, LayerInput, LayerInputs
from thalweg.models.spec.rope import ROPE_TYPES, Rope, describe_stretch, rope_type
from thalweg.models.spec.short_conv import ShortConv
from thalweg.models.spec.shortcut import Shortcut
from thalweg.models.spec.sound import Sound
from thalweg.models.spec.sparse import SparseMLP
from thalweg.models.spec.vision import Projector, Vision
from thalweg.models.spec.xielu import XieluMLP

__all__ = [
    "FFN",
    "MLP",
    "ROPE_TYPES",
    "Adapter",
    "AltUp",
    "AnyNorm",
    "Attention",
    "Beside",
    "Conv",
    "CrossAttention",
    "DeltaNet",
    "DisentangledAttention",
    "Distances",
    "Ending",
    "HeadNorm",
    "Hearing",
    "Indexer",
    "KimiDelta",
    "LatentAttention",
    "Laurel",
    "Layer",
    "LayerInput",
    "LayerInputs",
    "LayerNorm",
    "Learned",
    "LightningAttention",
    "Mamba",
    "Mamba2",
    "Mixer",
    "MoE",
    "ModelSpec",
    "Names",
    "Norm",
    "Norms",
    "Projector",
    "Relative",
    "Rope",
    "Scale",
    "ShortConv",
    "Shortcut",
    "Sound",
    "SparseMLP",
    "Streams",
    "UngatedMLP",
    "Vision",
    "XieluMLP",
    "describe_stretch",
    "rope_type",
]
