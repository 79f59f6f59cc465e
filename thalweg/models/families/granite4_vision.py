"""Granite 4 Vision: SigLIP encoder, Q-Formers that read windows of several of its layers, Granite decoder with their vectors
added before some of its layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, integer, real, section
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.granite4_vision import read_rate
from thalweg.models.families.granite import granite
from thalweg.models.families.multimodal import is_blind, seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import act, outer_config, size, vision_config
from thalweg.models.spec import ModelSpec, VisionSpec, WindowQFormerSpec, WindowQFormersSpec
from thalweg.models.spec.vision import ProjectorSpec

READERS = ("model.layerwise_projectors.", "model.spatial_projectors.")
OFFSETS = 4
TARGETS = [12, 15, 18, 21]


def granite4_vision(config: Config) -> ModelSpec:
    spec = granite(config)
    if is_blind(config):
        return seeing(spec, config, tower, skip=READERS)
    result = seeing(spec, config, tower)
    return replace(result, overlay_layers=tuple(layer - 1 for layer in read_targets(config, len(spec.layers)) if layer))


def read_targets(config: Config, layers: int) -> list[int]:
    """Layers of the decoder, of each Q-Former in turn."""
    found = [target for _, target in _pairs(config)]
    more = outer_config(config).get("spatial_target_layers") or TARGETS
    found += more if isinstance(more, list) else []
    whole = all(type(n) is int and 0 <= n < layers for n in found) and len(set(found)) == len(found)
    if not whole or len(found) != len(_pairs(config)) + OFFSETS:
        raise CheckpointError(
            f"config.json: deepstack_layer_map, spatial_target_layers: {found!r:.80}: must be different layers of {layers}, "
            f"{OFFSETS} of them in spatial_target_layers"
        )
    return found


def _pairs(config: Config) -> list[tuple[int, int]]:
    """Layer of the encoder and of the decoder."""
    found: Any = outer_config(config).get("deepstack_layer_map")
    pairs = isinstance(found, list) and all(isinstance(p, list | tuple) and len(p) == 2 for p in found)
    if not pairs or not all(type(n) is int for p in found for n in p):
        raise CheckpointError(f"config.json: deepstack_layer_map: must be pairs of layers, not {found!r:.60}")
    return [(first, second) for first, second in found]


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    around, settings = outer_config(config), vision_config(config)
    if settings.get("model_type") != "siglip_vision_model":
        raise UnsupportedModelError("config.json: vision_config: model_type: only siglip_vision_model is supported")
    depth = size(settings, "num_hidden_layers", 12)
    pairs = _pairs(config)
    layers = [n for n, _ in pairs] + [integer(around, "spatial_vision_layer", low=-depth, high=depth, default=-1)] * OFFSETS
    if any(not -depth <= n <= depth or n == 0 for n in layers):
        raise CheckpointError(f"config.json: deepstack_layer_map: layers of the encoder must be within {depth}")
    read = [n - 1 if n > 0 else depth + n for n in layers]
    reads = tuple(dict.fromkeys(read))
    offsets = [-1] * len(pairs) + list(range(OFFSETS))
    roots = [f"{READERS[0]}{i}." for i in range(len(pairs))] + [f"{READERS[1]}{i}." for i in range(OFFSETS)]
    readers = [_reader(config, root, offset) for root, offset in zip(roots, offsets, strict=True)]
    targets, sources = [target for _, target in pairs] + [-1] * OFFSETS, [reads.index(n) for n in read]
    first = targets.index(0) if 0 in targets else -1
    order = sorted(range(len(readers)), key=lambda i: i != first)
    result, unread = encoder(config, max(read) + 1, ProjectorSpec(root="", steps=()))
    resampler = WindowQFormersSpec(
        readers=tuple(readers[i] for i in order), sources=tuple(sources[i] for i in order), blank=first < 0
    )
    return replace(result, reads=reads, resampler=resampler, newline="model.image_newline"), unread


def _reader(config: Config, root: str, offset: int) -> WindowQFormerSpec:
    settings, reads = vision_config(config), section(outer_config(config), "qformer_config")
    queries, window = read_rate(config)
    hidden, side = size(settings, "hidden_size", 768), size(settings, "image_size", 224) // size(settings, "patch_size", 16)
    if side % window or (offset >= 0 and 2 * queries != window):
        raise UnsupportedModelError(
            f"config.json: downsample_rate: {queries}/{window} must divide {side} patches, and be 1/2 for the offsets of four"
        )
    more: dict[str, Any] = {"side": side, "window_side": window, "query_side": queries, "offset": offset}
    return WindowQFormerSpec(
        queries=queries**2, window=window**2, source=hidden, hidden=hidden, heads=max(hidden // 64, 1),
        inner=size(reads, "intermediate_size", 3072), layers=size(reads, "num_hidden_layers", 1),
        every=size(reads, "cross_attention_frequency", 1), act=act(reads, "hidden_act", "gelu"),
        eps=real(reads, "layer_norm_eps", default=1e-12), root=root, **more,
    )  # fmt: skip
