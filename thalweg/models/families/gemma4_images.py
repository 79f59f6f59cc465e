"""Gemma 4 with images: bidirectional attention among image tokens in sliding-window layers, where the configuration asks for
it."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.models.families import gemma4
from thalweg.models.families.multimodal import is_blind
from thalweg.models.families.towers.gemma4 import INSIDE
from thalweg.models.families.towers.gemma4 import gemma4 as tower
from thalweg.models.spec import Attention, Layer, ModelSpec

READ = ("vision_tower.", "embed_vision.")
"""Prefixes of tensors that the text part does not read."""


def gemma4_images(config: Config) -> ModelSpec:
    spec = gemma4.gemma4(config)
    if is_blind(config):
        return spec
    layers = tuple(map(_spanning, spec.layers)) if config.get("use_bidirectional_attention") == "vision" else spec.layers
    skip = tuple(each for each in spec.names.skip if not each.endswith(READ))
    names = replace(spec.names, inside=(*spec.names.inside, *INSIDE), skip=skip)
    return replace(spec, layers=layers, names=names, vision=tower(config))


def _spanning(layer: Layer) -> Layer:
    assert isinstance(layer.mixer, Attention)
    return replace(layer, mixer=replace(layer.mixer, spans=True)) if layer.mixer.window else layer
