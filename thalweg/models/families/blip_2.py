"""BLIP-2 with OPT: a vision transformer, a Q-Former whose queries become the vectors of an image, OPT decoder (Li et al. 2023,
https://arxiv.org/abs/2301.12597). FLAN-T5 decoders are not supported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import BESIDE, Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.base import edge
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.opt import opt
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import act, outer_config, size, vision_config
from thalweg.models.spec import Attention, Layer, ModelSpec, QFormerSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorSpec

VISION = {
    "hidden_size": 1408, "intermediate_size": 6144, "num_hidden_layers": 39, "num_attention_heads": 16, "image_size": 224,
    "patch_size": 14, "hidden_act": "gelu", "layer_norm_eps": 1e-6,
}  # fmt: skip
NAMES = (
    ("vision_model.", "model.decoder.vision_tower."), ("query_tokens", "model.decoder.projector.query"),
    ("qformer.", "model.decoder.projector.qformer."), ("language_projection.", "model.decoder.projector.linear."),
)  # fmt: skip
UNSEEN = (
    "query_tokens",
    "qformer.",
    "language_projection.",
    "model.decoder.projector.",
    "model.decoder.vision_tower.",
)


def blip_2(config: Config) -> ModelSpec:
    if (kind := config.get("model_type", "opt")) != "opt":
        raise UnsupportedModelError(f"config.json: text_config: model_type {kind!r:.40} is not supported; opt is")
    spec = seeing(opt(config), config, tower, replace=NAMES)
    skip = (*spec.names.skip, *(UNSEEN if spec.vision is None else ()))
    return replace(spec, names=replace(spec.names, skip=skip))


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """All layers, and the norm behind them."""
    said = {**VISION, **vision_config(config)}
    bias, patches = flag(said, "qkv_bias", True), edge(said, "image_size", 224) // edge(said, "patch_size", 14)
    clip = {**said, "model_type": "clip_vision_model"}
    around = {**config, BESIDE: {**outer_config(config), "vision_config": clip}}
    made, unread = encoder(around, size(said, "num_hidden_layers", 39), ProjectorSpec(root="", steps=()), normed=True)
    return replace(
        made, layers=tuple(_rename(layer, bias) for layer in made.layers), root="model.decoder.vision_tower.", patch_bias=True,
        stacks=1, enter=None,
        resampler=_qformer(config, made.hidden, patches**2 + 1),
    ), unread  # fmt: skip


def _rename(layer: Layer, bias: bool) -> Layer:
    assert isinstance(layer.mixer, Attention)
    return replace(layer, mixer=replace(layer.mixer, fused="qkv", out="projection", bias=bias))


def _qformer(config: Config, source: int, window: int) -> QFormerSpec:
    around = outer_config(config)
    said: Any = around.get("qformer_config") or {}
    if not isinstance(said, dict):
        raise CheckpointError("config.json: qformer_config: must be an object")
    if said.get("use_qformer_text_input"):
        raise UnsupportedModelError("config.json: qformer_config: use_qformer_text_input: true is not supported")
    return QFormerSpec(
        queries=integer(around, "num_query_tokens", high=1 << 12, default=32), window=window, source=source,
        hidden=size(said, "hidden_size", 768), heads=size(said, "num_attention_heads", 12),
        inner=size(said, "intermediate_size", 3072), layers=size(said, "num_hidden_layers", 12),
        every=size(said, "cross_attention_frequency", 2), act=act(said, "hidden_act", "gelu"),
        eps=real(said, "layer_norm_eps", default=1e-12),
        root="model.decoder.projector.",
    )  # fmt: skip
